#!/usr/bin/env bash
# Debian's Chromium for the tests of the report. Does nothing where one is installed; where it cannot be installed the tests
# that need it are skipped, and this says why. Never fails: a missing browser must not stop the other tests.
set -u
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done
if ! command -v apt-get >/dev/null 2>&1; then
  echo "chromium: not here, and no apt-get to install it; the report's browser tests will be skipped"
  exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "chromium: not here; install it with 'sudo apt-get install chromium', else the report's browser tests are skipped"
  exit 0
fi
echo "chromium: installing Debian's package"
log=$(mktemp)
if { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >"$log" 2>&1; then
  echo "chromium: installed"
else
  echo "chromium: could not be installed ($(tail -n 1 "$log")); the report's browser tests will be skipped"
fi
rm -f "$log"
exit 0
