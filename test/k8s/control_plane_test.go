package k8s

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// controlPlane is an API server with its etcd, on loopback: enough for whatever the API itself
// decides. There is no kubelet, and no controller: nothing that is accepted is ever run.
type controlPlane struct {
	binaries   string // folder of the programs
	kubeconfig string
}

// startControlPlane starts the programs. If one is missing, it skips the test, or fails it in CI.
func startControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	folder := t.TempDir()
	c := &controlPlane{
		binaries:   binaries(t, "etcd", "kube-apiserver", "kubectl", "helm"),
		kubeconfig: filepath.Join(folder, "kubeconfig"),
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := write(t, folder, "service-accounts.key",
		pem.EncodeToMemory(&pem.Block{
			Type:  "RSA PRIVATE KEY",
			Bytes: x509.MarshalPKCS1PrivateKey(key),
		}))
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // never fails
	token := hex.EncodeToString(secret)
	tokens := write(t, folder, "tokens.csv", []byte(token+",admin,admin,system:masters\n"))
	ports := freePorts(t, 3)
	clientPort, peerPort, apiPort := ports[0], ports[1], ports[2]
	write(t, folder, "kubeconfig",
		fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: test,
clusters: [{name: test, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %s/tls/apiserver.crt}}],
users: [{name: admin, user: {token: %s}}], contexts: [{name: test, context: {cluster: test, user: admin}}]}`, apiPort, folder, token))
	clientURL := fmt.Sprintf("http://127.0.0.1:%d", clientPort)
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", peerPort)
	c.start(t, folder, "etcd", "--data-dir", filepath.Join(folder, "etcd"), "--listen-client-urls",
		clientURL, "--advertise-client-urls", clientURL,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL,
		"--initial-cluster", "default="+peerURL, "--unsafe-no-fsync")
	c.start(t, folder, "kube-apiserver", "--etcd-servers="+clientURL, "--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", apiPort),
		"--cert-dir="+filepath.Join(folder, "tls"), "--endpoint-reconciler-type=none",
		// it refuses pods without a service account, and no controller makes those
		"--disable-admission-plugins=ServiceAccount",
		"--service-cluster-ip-range=198.18.128.0/20", "--authorization-mode=RBAC",
		"--token-auth-file="+tokens, "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+keyFile, "--service-account-signing-key-file="+keyFile)
	deadline := time.Now().Add(time.Minute)
	for {
		_, err := c.kubectl(t, "get", "--raw", "/readyz")
		if err == nil {
			return c
		}
		if time.Now().After(deadline) {
			// the log only helps to explain
			log, _ := os.ReadFile(filepath.Join(folder, "kube-apiserver.log"))
			t.Fatalf("the API server is not ready: %v\n%s", err, log)
		}
		time.Sleep(100 * time.Millisecond) // readiness can only be polled
	}
}

// start starts a program that runs until the test ends.
func (c *controlPlane) start(t *testing.T, folder, name string, arguments ...string) {
	t.Helper()
	command := exec.Command(filepath.Join(c.binaries, name), arguments...)
	log, err := os.Create(filepath.Join(folder, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // it may have ended
		_ = command.Wait()         // it was killed
		_ = log.Close()
	})
}

func (c *controlPlane) kubectl(t testing.TB, arguments ...string) (string, error) {
	t.Helper()
	return run(t.Context(), filepath.Join(c.binaries, "kubectl"),
		append([]string{"--kubeconfig", c.kubeconfig}, arguments...)...)
}

func (c *controlPlane) helm(t testing.TB, arguments ...string) (string, error) {
	t.Helper()
	return run(t.Context(), filepath.Join(c.binaries, "helm"),
		append([]string{"--kubeconfig", c.kubeconfig}, arguments...)...)
}

func write(t testing.TB, folder, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// freePorts returns different ports on which nobody listened a moment ago.
func freePorts(t testing.TB, count int) (ports []int) {
	t.Helper()
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
