package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// suite is a release of Debian from which brokers are taken. The empty suite stands for this
// machine's own system.
type suite string

const (
	thisMachine   suite = ""
	debian12      suite = "bookworm"
	debian13      suite = "trixie"
	debianTesting suite = "forky"
)

// packages has the packages that are installed from each suite: brokers, and what the plugin for
// Mosquitto is built with.
var packages = map[suite][]string{
	debian13: {
		"mosquitto", "mosquitto-clients", "mosquitto-dev", "libmosquitto-dev",
		"rabbitmq-server", "gcc", "libc6-dev", "make",
	},
	debianTesting: {
		"mosquitto", "mosquitto-clients", "mosquitto-dev", "libmosquitto-dev",
		"rabbitmq-server", "ejabberd", "gcc", "libc6-dev", "make",
	},
}

// errNoRelease says that the folder with a release could not be made. With CI=true that is a
// failure. Without it, the brokers of the release are left out.
var errNoRelease = errors.New("debootstrap could not make the folder of a release")

// required reports whether all brokers have to run. If so, a release that cannot be installed is a
// failure.
func required() bool { return os.Getenv("CI") == "true" }

// root returns the folder in which a suite is installed, or "" for this machine. A missing folder
// is made, which takes about a minute. Later runs use it again.
func root(ctx context.Context, s suite) (string, error) {
	if s == thisMachine {
		return "", nil
	}
	parent := os.Getenv("HOLDFAST_BROKERS_DIR")
	if parent == "" {
		parent = "/var/cache/holdfast-brokers"
	}
	key := sha256.Sum256([]byte(strings.Join(packages[s], " ")))
	folder := filepath.Join(parent, fmt.Sprintf("%s-%x", s, key[:4]))
	if _, err := os.Stat(filepath.Join(folder, ".complete")); err == nil {
		return folder, nil
	}
	fmt.Printf("preparing %s in %s\n", s, folder)
	if err := makeRoot(ctx, s, folder); err != nil {
		return "", fmt.Errorf("%w: %w", errNoRelease, err)
	}
	return folder, os.WriteFile(filepath.Join(folder, ".complete"), nil, 0o644)
}

// makeRoot makes the folder of a suite anew.
func makeRoot(ctx context.Context, s suite, folder string) error {
	mirror, err := mirrorOf(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(folder, 0o755)); err != nil {
		return err
	}
	// debootstrap has no script for a release that is younger than itself. The script of sid serves
	// all releases.
	if err := quiet(ctx, "debootstrap", "--variant=minbase", string(s), folder, mirror,
		"/usr/share/debootstrap/scripts/sid"); err != nil {
		return err
	}
	noServices := []byte("#!/bin/sh\nexit 101\n")
	if err := errors.Join(
		os.WriteFile(filepath.Join(folder, "usr/sbin/policy-rc.d"), noServices, 0o755),
		os.WriteFile(filepath.Join(folder, "etc/hosts"), []byte("127.0.0.1 localhost\n"), 0o644),
	); err != nil {
		return err
	}
	if len(packages[s]) == 0 {
		return nil
	}
	install := inside(ctx, folder, "env",
		append([]string{
			"DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y",
			"--no-install-recommends",
		}, packages[s]...)...)
	if text, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("install in %s: %w: %s", s, err, last(string(text), 10))
	}
	return nil
}

// mirrorOf returns the URL of the Debian mirror from which this machine installs its packages.
func mirrorOf(ctx context.Context) (string, error) {
	text, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(SITE)",
		"Created-By: Packages", "Component: main").Output()
	if err != nil {
		return "", fmt.Errorf("apt-get indextargets: %w", err)
	}
	for site := range strings.Lines(string(text)) {
		if site = strings.TrimSpace(site); strings.HasSuffix(site, "/debian") ||
			strings.HasSuffix(site, "/debian/") {
			return site, nil
		}
	}
	return "", errors.New("apt-get names no source of Debian's packages")
}

// inside returns a command that runs in a root or, if root is empty, on this machine. It is the
// first process of a PID namespace, so nothing that it starts outlives it. /tmp and /dev are this
// machine's.
func inside(ctx context.Context, root, program string, arguments ...string) *exec.Cmd {
	const script = `root=$0
if [ -n "$root" ]; then mount --bind /tmp "$root/tmp" && mount --bind /dev "$root/dev" && mount -t proc proc "$root/proc" || exit 125; exec chroot "$root" "$@"; fi
mount -t proc proc /proc || exit 125
exec "$@"`
	return exec.CommandContext(ctx, "unshare",
		append([]string{
			"--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, root,
			program,
		}, arguments...)...)
}

func quiet(ctx context.Context, program string, arguments ...string) error {
	if text, err := exec.CommandContext(ctx, program, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, last(string(text), 10))
	}
	return nil
}

// last returns the last lines of a text.
func last(text string, count int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}
