#!/usr/bin/env bash
# Debian's OpenSSH server for the tests of boards. Only in CI (it takes seconds): a server is nothing to put on somebody's
# machine unasked. Where there is none those tests are skipped and say why. Never fails, and never starts the service.
set -u
[ -x /usr/sbin/sshd ] && exit 0
if [ -z "${CI:-}" ] || [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "sshd: not here; the tests of boards over SSH will be skipped ('sudo apt-get install openssh-server' gets it)"
  exit 0
fi
log=$(mktemp)
# RUNLEVEL=1 keeps the package from starting its service.
if { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server openssh-client; } >"$log" 2>&1; then
  echo "sshd: installed"
else
  echo "sshd: could not be installed ($(tail -n 1 "$log")); the tests of boards over SSH will be skipped"
fi
rm -f "$log"
exit 0
