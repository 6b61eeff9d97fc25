"""What Celery's command line takes from Flower."""

import click

flower = click.Command("flower")
