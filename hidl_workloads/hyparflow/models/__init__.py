"""The models: functional Keras models that give logits, built under whatever dtype policy holds."""

#: CIFAR-10's height and width of images, and its classes.
SIZE = 32
CLASSES = 10
