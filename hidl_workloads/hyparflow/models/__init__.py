"""The models: functional Keras models that give logits, built under whatever dtype policy holds."""

#: CIFAR-10's images and classes.
SHAPE = (32, 32, 3)
CLASSES = 10
