"""The real model, its batch, its optimizer and the loop around them: what a training step is made of."""
