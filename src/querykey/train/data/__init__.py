"""What is trained on: text, sentences, parallel text, images, vectors and made-up tasks."""
