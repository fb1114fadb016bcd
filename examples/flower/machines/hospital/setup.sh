#!/bin/bash
# Set up a hospital, as root: bash setup.sh basel fed.example.org ca.pem
# The arguments are the hospital's name, the centre's, and the centre's certificate of authority.
set -euo pipefail
authority=$(realpath "$3")
cd "$(dirname "$(realpath "$0")")"
name=$1 address=$2

# Two users: fednode runs what comes from outside, feddata owns the rows. feddata is in the group of
# fednode, so that it may hand the socket to it.
id fednode &> /dev/null || useradd --system --user-group --no-create-home \
  --home-dir /var/lib/bayesfed-node --shell /usr/sbin/nologin fednode
id feddata &> /dev/null || useradd --system --user-group --no-create-home \
  --home-dir /var/lib/bayesfed-worker --shell /usr/sbin/nologin --groups fednode feddata
install -d -m 755 /etc/bayesfed
install -d -o feddata -g feddata -m 700 /srv/bayesfed
install -m 644 "$authority" /etc/bayesfed/ca.pem

# The key that proves who this hospital is. It never leaves this machine; node.pub goes to the centre.
[ -e /etc/bayesfed/node ] || ssh-keygen -q -t ecdsa -b 384 -N '' -C "$name" -f /etc/bayesfed/node
chown fednode /etc/bayesfed/node

# The hospital's own copy of the experiment, which nobody but root can change.
install -d -m 755 /etc/bayesfed/app
install -m 644 ../app/experiment.py ../app/pyproject.toml /etc/bayesfed/app/
cat > /etc/bayesfed/hospital.env <<ENVIRONMENT
CLIENT=$name
SUPERLINK=$address:443
STAYS=/srv/bayesfed/stays.csv
ENVIRONMENT

install -m 644 bayesfed-worker.service bayesfed-node.service /etc/systemd/system/
sed "s/fed.example.org/$address/" firewall.nft > /etc/bayesfed/firewall.nft
systemctl daemon-reload
ssh-keygen -l -f /etc/bayesfed/node.pub
