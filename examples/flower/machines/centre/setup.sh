#!/bin/bash
# Set up the centre, as root: bash setup.sh fed.example.org
# The argument is the name (or the IP address) by which hospitals reach this machine.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")"
address=$1
user=fedcentre
id "$user" &> /dev/null || useradd --system --create-home --home-dir /var/lib/bayesfed \
  --shell /bin/bash "$user"
chmod 700 /var/lib/bayesfed
install -d -m 755 /etc/bayesfed

# An authority for this consortium, which is made once and kept, and a certificate for this machine.
/opt/bayesfed/bin/python ../../certificates.py /etc/bayesfed "$address" localhost 127.0.0.1
chown "$user" /etc/bayesfed/superlink.key

# The secret between the SuperLink and the SuperExec.
[ -e /etc/bayesfed/superexec.key ] || (umask 077; head -c 32 /dev/urandom > /etc/bayesfed/superexec.key)
chown "$user" /etc/bayesfed/superexec.key

# What `flwr` has to know, and what is on the path, for the user who submits runs.
install -d -o "$user" -g "$user" -m 700 /var/lib/bayesfed/.flwr
install -o "$user" -g "$user" -m 600 config.toml /var/lib/bayesfed/.flwr/config.toml
cat > /var/lib/bayesfed/.profile <<'PROFILE'
export PATH=/opt/bayesfed/bin:$PATH FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
PROFILE

install -m 644 bayesfed-superlink.service bayesfed-superexec.service /etc/systemd/system/
sed "s/fed.example.org/$address/" nginx.conf > /etc/nginx/conf.d/bayesfed.conf
systemctl daemon-reload
systemctl enable --now bayesfed-superlink bayesfed-superexec
systemctl restart nginx
