package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// followMosquittoPage runs the commands of docs/brokers/mosquitto.md in a clean Debian, with this
// machine as the broker's address. Then it tests the broker that they set up, as a client and as a
// node.
func followMosquittoPage(ctx context.Context, t *tools) error {
	page, err := os.ReadFile(filepath.Join(t.repository, "docs/brokers/mosquitto.md"))
	if err != nil {
		return err
	}
	_, section, _ := strings.Cut(string(page), "## Set it up")
	lines := regexp.MustCompile(`(?m)^    .*$`).FindAllString(section, -1)
	end := -1
	for i, line := range lines {
		if strings.Contains(line, "createClient press") {
			end = i + 1
			break
		}
	}
	if end < 0 {
		return errors.New("docs/brokers/mosquitto.md has no line with \"createClient press\" below \"## Set it up\"")
	}
	settings, err := nodeSettings(lines[end:])
	if err != nil {
		return err
	}
	script := strings.ReplaceAll(strings.Join(lines[:end], "\n"), "BROKER=broker.example",
		"BROKER=127.0.0.1")
	clean, err := cleanRoot(ctx)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("/tmp", "holdfast-setup-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := os.WriteFile(filepath.Join(folder, "script"),
		[]byte(fmt.Sprintf(setupPrelude, folder)+script+setupEpilogue), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "node.yaml"), []byte(settings),
		0o644); err != nil {
		return err
	}
	clone := filepath.Join(folder, "clone")
	for _, step := range [][]string{
		{"mkdir", "-p", clone + "/deploy"},
		{"cp", "-r", filepath.Join(t.repository, "deploy/mosquitto"), clone + "/deploy/"},
		{
			"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
			"-nodes", "-days", "1", "-subj", "/CN=127.0.0.1", "-addext",
			"subjectAltName=IP:127.0.0.1", "-keyout", clone + "/broker.key", "-out", clone +
				"/broker.crt",
		},
		{"cp", clone + "/broker.crt", clone + "/ca.crt"},
		{"cp", t.holdfast, folder + "/holdfast"},
	} {
		if err := quiet(ctx, step[0], step[1:]...); err != nil {
			return err
		}
	}
	const limit = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	text, err := layered(ctx, clean, folder, "bash",
		filepath.Join(folder, "script")).CombinedOutput()
	if failure := os.WriteFile(filepath.Join(t.output, "setup.log"), text, 0o644); failure != nil {
		return failure
	}
	if err == nil && !strings.Contains(string(text), "followed") {
		err = errors.New("the script ended before its last line")
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, last(string(text), 12))
	}
	return nil
}

// setupPrelude provides what the page takes for granted. It sets the passwords, and enters the
// clone of the repository, in which the certificates are. In the place of systemctl it has a
// function that starts the broker in the background. %s is the folder of the test.
const setupPrelude = `set -eu
export ADMIN_PASSWORD=admin-secret NODES_PASSWORD=nodes-secret PRESS_PASSWORD=press-secret DEBIAN_FRONTEND=noninteractive
systemctl() { install -d -o mosquitto /run/mosquitto; mosquitto -c /etc/mosquitto/mosquitto.conf & for i in $(seq 50); do sleep 0.1; (exec 3<>/dev/tcp/127.0.0.1/8883) 2>/dev/null && return; done; return 1; }
cd %s/clone
`

// setupEpilogue tests what the page promises: the broker stamps requests with the client id, a
// client cannot connect with a node's client id, and a node serves the client.
const setupEpilogue = `
as() { user=$1 secret=$2; shift 2; mosquitto_rr -h 127.0.0.1 -p 8883 --cafile /etc/mosquitto/holdfast/ca.crt -V 5 -q 1 -u $user -P $secret -W 2 "$@"; }
mosquitto_sub -h 127.0.0.1 -p 8883 --cafile /etc/mosquitto/holdfast/ca.crt -V 5 -q 1 -u holdfast -P "$NODES_PASSWORD" -i holdfast-n1-in -W 4 -F '%P' -t statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke > seen &
sleep 1
as press "$PRESS_PASSWORD" -i press-1 -t statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke -e clients/press-1/r -D publish user-property '$holdfast-client-id' forged -m x || true
wait %2 || true
grep -q 'holdfast-client-id:press-1' seen
if grep -q 'press-1.*forged' seen; then echo 'the forged client id counts: it is the last'; exit 1; fi
if mosquitto_sub -h 127.0.0.1 -p 8883 --cafile /etc/mosquitto/holdfast/ca.crt -V 5 -u press -P "$PRESS_PASSWORD" -i holdfast-out-0 -t x -E -W 5; then echo 'connected as a node'; exit 1; fi
install -d /etc/holdfast
printf %s "$NODES_PASSWORD" > /etc/holdfast/broker-password
printf %s "$PRESS_PASSWORD" > /etc/holdfast/press-password
cp ca.crt /etc/holdfast/broker-ca.crt
../holdfast server --config ../node.yaml > node.log 2>&1 &
store() { ../holdfast "$@" --broker mqtts://127.0.0.1:8883 --ca-file ca.crt --username press --password-file /etc/holdfast/press-password --client-id press-1 --timeout 20s; }
store set greeting hello
test "$(store get greeting)" = hello
echo followed
`

// nodeSettings returns the settings of a node that the page shows, adapted to this machine.
func nodeSettings(lines []string) (string, error) {
	var settings []string
	for _, line := range lines {
		settings = append(settings, strings.TrimPrefix(line, "    "))
		if strings.Contains(line, "identity:") {
			text := strings.Join(settings, "\n") +
				"\nnode: {id: n1, dataDir: /var/lib/holdfast, minFreeDisk: 0}\n"
			return strings.ReplaceAll(text, "broker.example", "127.0.0.1"), nil
		}
	}
	return "", errors.New("the page has no settings of the nodes")
}

// cleanRoot returns a folder with Debian 12 and nothing beside, made by debootstrap when it is not
// there.
func cleanRoot(ctx context.Context) (string, error) { return root(ctx, debian12) }

// layered returns a command that runs in a root under an overlay. Its changes go to a tmpfs below
// folder, and are gone when it ends.
func layered(ctx context.Context, root, folder, program string, arguments ...string) *exec.Cmd {
	const script = `root=$0 folder=$1; shift
mount -t tmpfs tmpfs "$folder/layer" && mkdir "$folder/layer/upper" "$folder/layer/work" "$folder/layer/root" || exit 125
mount -t overlay overlay -o "lowerdir=$root,upperdir=$folder/layer/upper,workdir=$folder/layer/work" "$folder/layer/root" || exit 125
root=$folder/layer/root
mount --bind /tmp "$root/tmp" && mount --bind /dev "$root/dev" && mount -t proc proc "$root/proc" || exit 125
exec chroot "$root" "$@"`
	// if this fails, the script's mount reports it
	_ = os.Mkdir(filepath.Join(folder, "layer"), 0o755)
	return exec.CommandContext(ctx, "unshare",
		append([]string{
			"--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, root,
			folder, program,
		}, arguments...)...)
}
