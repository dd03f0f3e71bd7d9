package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"holdfast/test/mutants"
)

// images has the names of the Docker images that the containers run.
type images struct{ node, load, broker string }

// buildImages builds the images without a registry. Those of the node and of the load hold only
// their binaries. The broker's is made from the installed mosquitto, unless BROKER_IMAGE names
// another image. mutant names the mutants (broken builds of the product) to run, joined by +; it
// may be empty.
func buildImages(ctx context.Context, mutant string) (images, error) {
	folder, err := os.MkdirTemp("", "holdfast-chaos-images-")
	if err != nil {
		return images{}, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	built := images{
		node: "holdfast-chaos-node", load: "holdfast-chaos-load",
		broker: os.Getenv("BROKER_IMAGE"),
	}
	edited := []mutants.Mutant{mutants.SkewedClock()}
	if mutant != "" {
		for name := range strings.SplitSeq(mutant, "+") {
			broken, err := mutants.Find(name)
			if err != nil {
				return images{}, err
			}
			edited = append(edited, broken)
		}
		built.node += "-" + strings.NewReplacer("_", "-", "+", "-").Replace(mutant)
	}
	product, err := mutants.Root(ctx)
	if err != nil {
		return images{}, err
	}
	overlay, err := mutants.Overlay(ctx, filepath.Join(folder, "overlay"), edited...)
	if err != nil {
		return images{}, err
	}
	for _, program := range []struct{ image, name, module, source, overlay string }{
		{"node", "holdfast", product, "./cmd/holdfast", overlay},
		{"node", "machine", "", "holdfast/test/chaos/machine", ""},
		{"load", "load", "", "holdfast/test/chaos/load", ""},
	} {
		command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w",
			"-overlay", program.overlay, "-o", filepath.Join(folder, program.image, program.name),
			program.source)
		command.Dir = program.module
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := command.CombinedOutput(); err != nil {
			return images{}, fmt.Errorf("build %s: %w: %s", program.name, err, output)
		}
	}
	for name, content := range map[string]string{
		"node": "FROM scratch\nCOPY holdfast machine /\nWORKDIR /data\nWORKDIR /\nENTRYPOINT [\"/machine\"]\n",
		"load": "FROM scratch\nCOPY load /\nENTRYPOINT [\"/load\"]\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name, "Dockerfile"), []byte(content),
			0o600); err != nil {
			return images{}, err
		}
	}
	if _, err := docker(ctx, "build", "-q", "-t", built.node,
		filepath.Join(folder, "node")); err != nil {
		return images{}, err
	}
	if _, err := docker(ctx, "build", "-q", "-t", built.load,
		filepath.Join(folder, "load")); err != nil {
		return images{}, err
	}
	if built.broker == "" {
		built.broker = "holdfast-chaos-broker"
		err = importBroker(ctx, filepath.Join(folder, "broker"), built.broker)
	}
	return built, err
}

// importBroker makes an image of the mosquitto that is installed here, and the libraries that it is
// linked with.
func importBroker(ctx context.Context, root, image string) error {
	program, err := exec.LookPath("mosquitto")
	if err != nil {
		if program = "/usr/sbin/mosquitto"; !exists(program) {
			return fmt.Errorf(
				"install Debian's mosquitto, or name another image with BROKER_IMAGE: %w", err)
		}
	}
	linked, err := runProgram(ctx, "", "ldd", program)
	if err != nil {
		return err
	}
	files := []string{program}
	for _, word := range strings.Fields(linked) {
		if strings.HasPrefix(word, "/") {
			files = append(files, word)
		}
	}
	for _, name := range files {
		if err := copyFile(name, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{"etc/passwd": "root:x:0:0::/:\nmosquitto:x:1883:1883::/:\n", "etc/group": "root:x:0:\nmosquitto:x:1883:\n", "tmp/.keep": ""} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	archive := root + ".tar"
	if _, err := runProgram(ctx, "", "tar", "-C", root, "-cf", archive, "."); err != nil {
		return err
	}
	_, err = docker(ctx, "import", "-c", fmt.Sprintf("ENTRYPOINT [%q]", program), archive, image)
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }() // only read
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		_ = target.Close() // the error of the copy is returned
		return err
	}
	return target.Close()
}
