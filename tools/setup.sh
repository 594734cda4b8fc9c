#!/bin/sh
# Installs the requirements of the Makefile's targets, on Debian, Ubuntu, macOS and similar systems.
#
#   tools/setup.sh packages VENV EXTRAS
#                                      create VENV with Python 3.11 or newer and install this project into it, with these
#                                      extras of pyproject.toml (demo,dev), in the versions of constraints.txt
#   tools/setup.sh upgrade VENV EXTRAS
#                                      create VENV again with the newest versions, and list them in constraints.txt
#   tools/setup.sh node FOLDER         install the packages of FOLDER's package-lock.json, if npm is installed
#   tools/setup.sh browser             install Chromium with apt if possible
#   tools/setup.sh unpack_nginx VENV   unpack nginx of Debian or Ubuntu into VENV if possible
#   tools/setup.sh run VENV COMMAND…   find Java 17 or newer (or install it with apt if possible), then
#                                      run COMMAND with JAVA_HOME set and VENV first on the PATH
set -eu

say() { printf '%s\n' "$*" >&2; }
die() { say ""; for line in "$@"; do say "$line"; done; exit 1; }

# Runs apt-get as root or with sudo without a password; fails if neither is possible.
apt() {
    command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" = 0 ]; then as_root="env"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then as_root="sudo -n env"
    else return 1; fi
    $as_root DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" </dev/null >&2
}

# Updates the package lists and installs the first available one of the named packages.
apt_install_one() {
    apt update || return 1
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            say "Installing $package with apt …"
            apt install -y --no-install-recommends "$package" && return 0
        fi
    done
    return 1
}

# --- Python ---------------------------------------------------------------------------------------------------------

python_is_new_enough() {
    "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null 2>&1 && python_is_new_enough "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

packages() {
    venv=$1
    extras=$2
    constraints=${3-constraints.txt}
    if ! { [ -x "$venv/bin/python" ] && python_is_new_enough "$venv/bin/python" \
           && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
        python=$(find_python) || die \
            "spark_rocket requires Python 3.11 or newer; python3 here is: $(python3 --version 2>&1 || true)" \
            "  Debian 12+, Ubuntu 24.04+: sudo apt-get install python3 python3-venv" \
            "  macOS:                     brew install python@3.13" \
            "Then run make again, or specify a Python: make PYTHON=/path/to/python3.13 …"
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        say "Creating $venv with Python $version …"
        rm -rf "$venv"
        if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
            rm -rf "$venv"
            apt_install_one "python$version-venv" python3-venv || true
            "$python" -m venv "$venv" || die \
                "Python $version is installed, but its venv module is missing." \
                "  Debian, Ubuntu: sudo apt-get install python$version-venv" \
                "Then run make again."
        fi
    fi
    size=" (pyspark has about 450 MB: this takes some minutes)"
    for found in "$venv"/lib/python*/site-packages/pyspark; do
        if [ -d "$found" ]; then size=""; fi
    done
    say "Installing the packages for $extras into $venv$size …"
    quiet=-q
    if [ -t 2 ]; then quiet=""; fi
    # Python compiles what is imported; all of the packages would take half a minute.
    PIP_ROOT_USER_ACTION=ignore "$venv/bin/python" -m pip install $quiet --disable-pip-version-check --no-compile \
        --no-warn-script-location ${constraints:+-c "$constraints"} -e ".[$extras]" </dev/null >&2 || die \
        "The packages could not be installed: see pip's messages above." \
        "pip requires a reachable package index; pip config list shows which one it uses."
}

upgrade() {
    rm -rf "$1"
    packages "$1" "$2" ""
    "$1/bin/python" -m pip freeze --disable-pip-version-check --exclude-editable >constraints.new
    mv constraints.new constraints.txt
}

# --- Node.js --------------------------------------------------------------------------------------------------------

# Required only by tests, which are skipped without it. With REQUIRE_OFFICIAL they fail, and so does this.
node() {
    if ! command -v npm >/dev/null 2>&1; then
        say "npm is not installed: the tests with RocketMQ's own Node.js client are skipped."
    elif (cd "$1" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error </dev/null >&2); then
        return 0
    else
        say "npm could not install the packages of $1: the tests that require them are skipped."
    fi
    [ -z "${REQUIRE_OFFICIAL:-}" ]
}

# --- Chromium -------------------------------------------------------------------------------------------------------

# Required only by the tests of the console's pages, which are skipped without it. Never fails.
browser() {
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1; then return 0; fi
    done
    once="-o Acquire::http::Timeout=20 -o Acquire::Retries=1"
    say "Looking for Chromium and its driver …"
    # shellcheck disable=SC2086  # several options
    if apt $once update && apt-cache show chromium-driver >/dev/null 2>&1 &&
        apt $once install -y --no-install-recommends chromium chromium-driver; then return 0; fi
    say "Chromium is not installed: the tests of the console's pages in a browser are skipped."
}

# --- nginx ----------------------------------------------------------------------------------------------------------

# Required only by the test of the proxy behind nginx, which is skipped without it. Never fails.
unpack_nginx() {
    if command -v nginx >/dev/null 2>&1; then return 0; fi
    folder=$(mktemp -d)
    # Unpacked, not installed: that would start a server on port 80.
    if apt update && (cd "$folder" && apt-get -qq download nginx 2>/dev/null) &&
        dpkg -x "$folder"/nginx_*.deb "$1/nginx"; then
        ln -sf ../nginx/usr/sbin/nginx "$1/bin/nginx"
    else
        say "nginx is not installed: the test of the proxy behind nginx is skipped."
    fi
    rm -rf "$folder"
}

# --- Java -----------------------------------------------------------------------------------------------------------

# Prints the home of a Java that Spark can use: 17 or newer, with the module that Spark's launcher requires.
java_home_of() {
    [ -x "$1" ] || return 1
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    major=$(printf '%s\n' "$settings" | sed -n 's/^ *java\.specification\.version = \([0-9]*\).*/\1/p')
    home=$(printf '%s\n' "$settings" | sed -n 's/^ *java\.home = //p')
    [ -n "$home" ] && [ "${major:-0}" -ge 17 ] || return 1
    "$1" --list-modules 2>/dev/null | grep -q '^jdk\.incubator\.vector' || return 1
    printf '%s\n' "$home"
}

find_java() {
    for candidate in \
        "${JAVA_HOME:-/nonexistent}/bin/java" \
        "$(command -v java 2>/dev/null || true)" \
        "$(/usr/libexec/java_home -v 17+ 2>/dev/null || echo /nonexistent)/bin/java" \
        /usr/lib/jvm/*/bin/java \
        /opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java \
        /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java \
        "$HOME"/.sdkman/candidates/java/*/bin/java "$HOME"/.jdks/*/bin/java /opt/java/*/bin/java
    do
        java_home_of "$candidate" && return 0
    done
    return 1
}

run() {
    venv=$1
    shift
    if ! JAVA_HOME=$(find_java); then
        say "Spark requires Java 17 or newer, which was not found in JAVA_HOME, on the PATH or in the usual folders."
        apt_install_one openjdk-21-jre-headless openjdk-17-jre-headless || true
        JAVA_HOME=$(find_java) || die \
            "Install Java 17 or newer:" \
            "  Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless   (or openjdk-21-jre-headless)" \
            "  Fedora, RHEL:   sudo dnf install java-21-openjdk-headless" \
            "  macOS:          brew install openjdk@21" \
            "Then run make again; set JAVA_HOME if it is in an unusual folder."
    fi
    # Without PYSPARK_PYTHON, Spark's workers run the first python3 on the PATH.
    PYSPARK_PYTHON=$(cd "$venv/bin" && pwd)/python
    PATH=$(dirname "$PYSPARK_PYTHON"):$PATH
    PYSPARK_DRIVER_PYTHON=$PYSPARK_PYTHON
    export JAVA_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PATH
    unset PYTHONDONTWRITEBYTECODE  # otherwise each Spark worker and server compiles its imports again
    exec "$@"
}

cd "$(dirname "$0")/.."
verb=${1:-}
case $verb in
    packages | upgrade | node | browser | unpack_nginx | run) shift; "$verb" "$@" ;;
    *) die "usage: tools/setup.sh packages VENV EXTRAS | upgrade VENV EXTRAS | node FOLDER | browser | unpack_nginx VENV |" \
           "       run VENV COMMAND…" ;;
esac
