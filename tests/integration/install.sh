#!/bin/sh
# Installs what the integration tests need: install.sh [vm]. Wants root and Debian's or Ubuntu's archive.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
lists="$here/packages.txt"
[ "${1:-}" != vm ] || lists="$lists $here/packages-vm.txt"
# shellcheck disable=SC2086 # the word list is meant to split
packages=$(sed 's/#.*//' $lists | sort -u)
missing=""
for package in $packages; do
  dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
