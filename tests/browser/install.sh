#!/bin/sh
# What `make browser` and `make screenshots` need beside Python packages, where it is not there yet:
# Debian's Chromium with its driver, and axe-core from npm. What cannot be had is said, and the
# tests that need it are skipped.
set -u
node_home=${1:?usage: install.sh FOLDER}

packages=
command -v chromium >/dev/null && command -v chromedriver >/dev/null ||
    packages="chromium chromium-driver"
command -v npm >/dev/null || packages="$packages npm"
if [ -n "$packages" ]; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root="sudo -n"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    { $as_root apt-get update -qq &&
        $as_root apt-get install -qq --yes --no-install-recommends $packages >/dev/null; } ||
        echo "Could not install:$packages. Install them by hand." >&2
fi

[ -e "$node_home/node_modules/axe-core/axe.min.js" ] ||
    npm install --silent --no-fund --no-audit --prefix "$node_home" axe-core@4 >/dev/null ||
    echo "Could not install axe-core with npm: the accessibility tests will be skipped." >&2
exit 0
