"""The extensions, created without an app; `create_app` initializes them."""

from __future__ import annotations

from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase

from flask_cronjobs import CronJobs


class Base(DeclarativeBase):
    """The base of the models. (`db.Model` works too, but type checkers understand this one.)"""


db = SQLAlchemy(model_class=Base)
jobs = CronJobs()
