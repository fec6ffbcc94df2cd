"""The app of `ours_app` without Flask-CronJobs."""

from __future__ import annotations

import os

from flask import Flask
from flask_sqlalchemy import SQLAlchemy

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = "postgresql+psycopg:" + os.environ[
    "PEERS_URL"
].removeprefix("postgresql:")
db = SQLAlchemy(app)
