"""What is minimised: the losses of text models and of image models, one class each."""
