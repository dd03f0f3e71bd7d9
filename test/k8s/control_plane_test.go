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

// controlPlane is an API server with its etcd, on loopback: enough for whatever the API itself decides. There is no kubelet, and
// no controller: nothing that is accepted is ever run.
type controlPlane struct {
	binaries, kubeconfig string
}

func startControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	folder := t.TempDir()
	c := &controlPlane{binaries: binaries(t, "etcd", "kube-apiserver", "kubectl", "helm"), kubeconfig: filepath.Join(folder, "kubeconfig")}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := write(t, folder, "service-accounts.key", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // never fails
	token := hex.EncodeToString(secret)
	tokens := write(t, folder, "tokens.csv", []byte(token+",admin,admin,system:masters\n"))
	client, peer, api := freePort(t), freePort(t), freePort(t)
	write(t, folder, "kubeconfig", fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: test,
clusters: [{name: test, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %s/tls/apiserver.crt}}],
users: [{name: admin, user: {token: %s}}], contexts: [{name: test, context: {cluster: test, user: admin}}]}`, api, folder, token))
	etcd := fmt.Sprintf("http://127.0.0.1:%d", client)
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", peer)
	c.start(t, folder, "etcd", "--data-dir", filepath.Join(folder, "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default="+peerURL, "--unsafe-no-fsync")
	c.start(t, folder, "kube-apiserver", "--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", api),
		"--cert-dir="+filepath.Join(folder, "tls"), "--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=198.18.128.0/20", "--authorization-mode=RBAC",
		"--token-auth-file="+tokens, "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+keyFile, "--service-account-signing-key-file="+keyFile)
	deadline := time.Now().Add(time.Minute)
	for {
		_, err := c.kubectl(t, "get", "--raw", "/readyz")
		if err == nil {
			return c
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(folder, "kube-apiserver.log")) // what there is
			t.Fatalf("the API server is not ready: %v\n%s", err, log)
		}
		time.Sleep(100 * time.Millisecond) // it cannot be waited for otherwise
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
	return run(t.Context(), filepath.Join(c.binaries, "kubectl"), append([]string{"--kubeconfig", c.kubeconfig}, arguments...)...)
}

func (c *controlPlane) helm(t testing.TB, arguments ...string) (string, error) {
	t.Helper()
	return run(t.Context(), filepath.Join(c.binaries, "helm"), append([]string{"--kubeconfig", c.kubeconfig}, arguments...)...)
}

func write(t testing.TB, folder, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}
