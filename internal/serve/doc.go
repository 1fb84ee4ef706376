// Package serve lets a service in any language consume its tasks: a scenes file says which scenes there are and what
// runs them, an HTTP endpoint beside the service or a command.
//
// # The scenes file
//
//	allow_hosts: [billing.internal]     # hosts other than this machine that http handlers may call
//	scenes:
//	  - name: payment.refund
//	    unknown: repeat                 # an outcome that nobody knows: review (default) or repeat
//	    timeout: 30s                    # of one attempt; default 1m; 0s for none
//	    concurrency: 8                  # tasks of this scene at once in one process; default: SPILLWAY_CONCURRENCY
//	    max_crashes: 3                  # runs that end without a word before a person looks
//	    policy:                         # default: EXPONENTIAL from 2s to 1h, 15 attempts, 7 days
//	      kind: EXPONENTIAL             # or FIXED, LINEAR, CUSTOM
//	      base: 1s
//	      cap: 10m
//	      max_attempts: 8
//	      deadline: 24h
//	      no_jitter: false
//	    handler:
//	      http:
//	        url: http://127.0.0.1:8080/refund
//	        headers: {Authorization: "Bearer ${REFUND_TOKEN}"}
//	  - name: mail.send
//	    policy: {delays: [1s, 10s, 1m]} # CUSTOM
//	    handler:
//	      exec: {command: [./send.py], env: {LANG: C.UTF-8}}
//	    exit_codes: {65: permanent}     # permanent, transient or unknown
//
// ${NAME} in header and env values stands for an environment variable, so that secrets stay out of the file; $${ stands
// for ${. Relative paths of commands (with a slash) and of dir are relative to the file's folder, which is also where
// commands run by default.
//
// # HTTP handlers
//
// The arguments are sent by POST with the task's content type and these headers: Idempotency-Key
// (service/scene/key, the same for every attempt), those of package retryhttp (Spillway-Task-Id, Spillway-Service,
// Spillway-Scene, Spillway-Key, Spillway-Attempt, Spillway-Time-Left, Spillway-Timeout), Spillway-Handler, Spillway-Unknown (true where an earlier attempt may have taken effect) and Spillway-Deadline (RFC 3339; absent where
// there is none). What is not printable ASCII in a key is percent-encoded, and so is %. The task's own headers are sent
// too, unless they would replace one of these or steer the connection. 2xx is success; everything else is classed by
// retry.NewHTTPError and Retry-After is kept. Redirects are not followed.
//
// # Exec handlers
//
// The command gets the arguments on stdin, and in its environment SPILLWAY_IDEMPOTENCY_KEY, SPILLWAY_TASK_ID,
// SPILLWAY_SCENE, SPILLWAY_KEY, SPILLWAY_ATTEMPT, SPILLWAY_UNKNOWN, SPILLWAY_HEADERS (a JSON object) and
// SPILLWAY_DEADLINE (absent where there is none). The rest of the environment is this process's without the addresses of
// Postgres and RabbitMQ, which hold passwords. Exit code 0 is success and 75 transient; exit_codes says what others
// mean, and what it leaves open follows the scene's rule for unknown outcomes. The last 4 KiB of stderr become the error's text.
// When the attempt has to stop, the command's process group gets SIGTERM and, 5 s later, SIGKILL.
package serve
