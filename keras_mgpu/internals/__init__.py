"""Every private name of Keras and TensorFlow this package depends on."""
