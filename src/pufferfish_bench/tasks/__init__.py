"""What is trained on: a file per data set, named like its file in conf/dataset, in images/, text/ and translation/.

Each of the three has a task.py: the batches, the loss and the evaluation that its data sets have in common.
"""
