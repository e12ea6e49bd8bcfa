"""The files of Multi30k, with three training pairs."""

# "a", "dog", "." and "ein", "hund", "." appear three times, "." in both languages
SMALL = {
    "train.de": "Ein Hund.\nEin Hund läuft.\n  Ein Hund sitzt. \n",
    "train.en": "A dog.\nA dog runs.\n  A dog sits. \n",
    "val.de": "Hund\n",
    "val.en": "Dog\n",
    "test_2016_flickr.de": "Ein Hund im Park.\nEin Hund.\n",
    "test_2016_flickr.en": "A dog in a Park.\nA  dog.\n",
}
