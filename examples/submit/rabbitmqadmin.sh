#!/usr/bin/env bash
# Submits a task by rabbitmqadmin, the management plugin's tool: for a person at a terminal, not for programs, since its "published"
# says that the message was routed, not that it is safe.
#
#   rabbitmqadmin.sh mail.send welcome-anna '{"to": "anna@example.com"}'
#
# Needs python3, curl, uuidgen or Linux, and SPILLWAY_MANAGEMENT_URL (http://user:password@host:port), SPILLWAY_AMQP_URL (for
# the virtual host) and SPILLWAY_SERVICE. Names with quotes or backslashes would have to be escaped.
set -euo pipefail
scene=$1 key=$2 json=$3

[[ $SPILLWAY_MANAGEMENT_URL =~ ^http://([^:]+):([^@]+)@([^:/]+):([0-9]+)/?$ ]] || { echo 'SPILLWAY_MANAGEMENT_URL is not http://user:password@host:port' >&2; exit 2; }
user=${BASH_REMATCH[1]} password=${BASH_REMATCH[2]} host=${BASH_REMATCH[3]} port=${BASH_REMATCH[4]}
vhost=${SPILLWAY_AMQP_URL#*://*/}
if [[ $vhost == "$SPILLWAY_AMQP_URL" || -z $vhost ]]; then vhost=/; fi

admin=$(mktemp)
trap 'rm -f "$admin"' EXIT
curl -fsS -o "$admin" "http://$host:$port/cli/rabbitmqadmin" # the broker hands out its own version

id=$(cat /proc/sys/kernel/random/uuid 2>/dev/null || uuidgen)
said=$(python3 "$admin" --host="$host" --port="$port" --username="$user" --password="$password" --vhost="$vhost" publish \
  exchange="spillway.v1.$SPILLWAY_SERVICE.submit" routing_key=task payload="$json" \
  properties="{\"delivery_mode\": 2, \"message_id\": \"$id\", \"content_type\": \"application/json\",
               \"headers\": {\"spillway-scene\": \"$scene\", \"spillway-key\": \"$key\"}}")
echo "$said"
[[ $said != *'NOT routed'* ]] # no consumer was ever there, or the service's name is wrong
