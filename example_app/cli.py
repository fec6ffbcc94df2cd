"""``flask init-db`` and ``flask add-staff``."""

from __future__ import annotations

import click
from flask.cli import with_appcontext
from werkzeug.security import generate_password_hash

from .auth import find_user
from .extensions import db
from .models import User
from .tasks import OFFICE


@click.command()
@with_appcontext
def init_db() -> None:
    """Create the tables that do not exist yet, including the job tables."""
    db.create_all()
    click.echo(f"The tables exist in {db.engine.url.render_as_string()}")


@click.command()
@click.argument("email")
@click.password_option()
@with_appcontext
def add_staff(email: str, password: str) -> None:
    """Add a user who may open /support and /jobs."""
    email = email.strip().lower()
    if find_user(email) is not None:
        raise click.ClickException(f"{email} has an account already.")
    hashed = generate_password_hash(password)
    user = User(email=email, name=email, password_hash=hashed, timezone=OFFICE, is_staff=True)
    db.session.add(user)
    db.session.commit()
    click.echo(f"{email} may use /support and /jobs now.")
