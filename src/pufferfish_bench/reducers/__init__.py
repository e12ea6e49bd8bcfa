"""Ways to average the gradients of all ranks, chosen by conf/reducer/. flat.py and bits.py are shared by several of them."""
