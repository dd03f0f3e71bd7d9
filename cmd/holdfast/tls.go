package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/pki"
)

// The two authorities of a plant. They are apart because the admin API allows everything to a
// certificate of the cluster's: one that is given to a client must not be of it.
const (
	clusterAuthority = "ca"      // members and administrators
	mqttAuthority    = "mqtt-ca" // the broker and its clients
)

func newTLS() *cobra.Command {
	command := group(&cobra.Command{
		Use:   "tls",
		Short: "Make, renew and show certificates",
		Long: `Makes the certificates of a plant, in one folder. There are two authorities: ca.crt vouches for members and administrators,
mqtt-ca.crt for the broker and its clients. Keep ca.key and mqtt-ca.key where no node and no client runs: whoever has them can
be anybody.`,
		Example: `  holdfast tls ca --dir plant
  holdfast tls node n1 n1.plant.example --dir plant
  holdfast tls renew plant/n1.crt --dir plant`,
	})
	command.AddCommand(newTLSAuthority(), newTLSNode(), newTLSAdmin(), newTLSBroker(),
		newTLSClient(), newTLSRenew(), newTLSShow())
	return command
}

// tlsFolder are the flags of the commands that make certificates.
type tlsFolder struct {
	dir  string
	days int
}

func (f *tlsFolder) addFlags(command *cobra.Command, days int) {
	command.Flags().StringVar(&f.dir, "dir", "tls", "`folder` of the certificates and keys")
	command.Flags().IntVar(&f.days, "days", days, "for how many days the certificate is valid")
}

func (f *tlsFolder) lifetime() (time.Duration, error) {
	const most = 100 * 365
	if f.days < 1 || f.days > most {
		return 0, usagef("--days is %d: must be from 1 to %d", f.days, most)
	}
	return time.Duration(f.days) * 24 * time.Hour, nil
}

func (f *tlsFolder) file(name, extension string) string {
	return filepath.Join(f.dir, name+extension)
}

// checkFree returns an error if a certificate or its key is there already.
func (f *tlsFolder) checkFree(names ...string) error {
	for _, name := range names {
		for _, extension := range []string{".crt", ".key"} {
			if _, err := os.Lstat(f.file(name, extension)); !errors.Is(err, fs.ErrNotExist) {
				return usagef("%s is there already, and stays as it is", f.file(name, extension))
			}
		}
	}
	return nil
}

// write writes a pair that is not there yet, and says what it is.
func (f *tlsFolder) write(command *cobra.Command, name string, pair pki.Pair) error {
	certFile, keyFile := f.file(name, ".crt"), f.file(name, ".key")
	if err := pair.Write(certFile, keyFile); err != nil {
		return err
	}
	if err := showCertificates(command, certFile); err != nil {
		return err
	}
	_, err := fmt.Fprintf(command.OutOrStdout(), "%s: its key\n", keyFile)
	return err
}

// issue makes a certificate by one of the authorities.
func (f *tlsFolder) issue(command *cobra.Command, authority string, r pki.Request) error {
	if err := checkFileName(r.Name); err != nil {
		return err
	}
	if err := f.checkFree(r.Name); err != nil {
		return err
	}
	lifetime, err := f.lifetime()
	if err != nil {
		return err
	}
	signer, err := pki.Load(f.file(authority, ".crt"), f.file(authority, ".key"))
	if err != nil {
		return &usageError{fmt.Errorf("%w; `holdfast tls ca` makes authorities", err)}
	}
	pair, err := signer.Issue(r, lifetime, time.Now())
	if err != nil {
		return &usageError{err}
	}
	return f.write(command, r.Name, pair)
}

// checkFileName refuses what cannot be a part of a file's name, and the names of the authorities.
func checkFileName(name string) error {
	if name == "" || name == clusterAuthority || name == mqttAuthority ||
		strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") {
		return usagef("%q is no name for a certificate: the files are called by it", name)
	}
	return nil
}

func newTLSAuthority() *cobra.Command {
	var folder tlsFolder
	const years = 10
	command := &cobra.Command{
		Use:     "ca",
		Short:   "Make the two authorities: ca.crt for members and administrators, mqtt-ca.crt for the broker and its clients",
		Example: "  holdfast tls ca\n  holdfast tls ca --dir plant2 --days 7300",
		Args:    positional(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			lifetime, err := folder.lifetime()
			if err != nil {
				return err
			}
			const private = 0o700
			if err := os.MkdirAll(folder.dir, private); err != nil {
				return err
			}
			if err := folder.checkFree(clusterAuthority, mqttAuthority); err != nil {
				return err
			}
			for _, one := range []struct{ file, subject string }{
				{clusterAuthority, "holdfast cluster"},
				{mqttAuthority, "holdfast mqtt"},
			} {
				_, pair, err := pki.NewAuthority(one.subject, lifetime, time.Now())
				if err != nil {
					return err
				}
				if err := folder.write(command, one.file, pair); err != nil {
					return err
				}
			}
			return nil
		},
	}
	folder.addFlags(command, years*365)
	return command
}

// newTLSIssue completes a command that makes a certificate by one of the authorities.
func newTLSIssue(command *cobra.Command, args cobra.PositionalArgs, authority string,
	request func(arguments []string) pki.Request,
) *cobra.Command {
	var folder tlsFolder
	command.Args = positional(args)
	command.RunE = func(command *cobra.Command, arguments []string) error {
		return folder.issue(command, authority, request(arguments))
	}
	folder.addFlags(command, 365)
	return command
}

func newTLSNode() *cobra.Command {
	return newTLSIssue(&cobra.Command{
		Use:   "node NAME [HOST...]",
		Short: "Make the certificate of a member: its node.id, and the hosts under which it is reached",
		Long: `Makes NAME.crt and NAME.key, for cluster.tls and admin.tls of the node whose node.id is NAME. Name each host, or IP address,
under which members, administrators and browsers reach it. The node also needs ca.crt.`,
		Example: "  holdfast tls node n1 n1.plant.example 10.0.0.1",
	}, cobra.MinimumNArgs(1), clusterAuthority, func(arguments []string) pki.Request {
		return pki.Request{Name: arguments[0], Hosts: arguments, Use: pki.Node}
	})
}

func newTLSAdmin() *cobra.Command {
	return newTLSIssue(&cobra.Command{
		Use:     "admin NAME",
		Short:   "Make the certificate of an administrator, to whom admin.tls allows everything",
		Example: "  holdfast tls admin alice",
	}, cobra.ExactArgs(1), clusterAuthority, clientRequest)
}

func newTLSBroker() *cobra.Command {
	return newTLSIssue(&cobra.Command{
		Use:   "broker HOST [HOST...]",
		Short: "Make the certificate of the broker: the hosts under which nodes and clients reach it",
		Long: `Makes broker.crt and broker.key, for the broker's TLS listener. Nodes and clients verify it by mqtt-ca.crt
(broker.tls.caFile).`,
		Example: "  holdfast tls broker broker.plant.example 10.0.0.9",
	}, cobra.MinimumNArgs(1), mqttAuthority, func(arguments []string) pki.Request {
		return pki.Request{Name: "broker", Hosts: arguments, Use: pki.Server}
	})
}

func newTLSClient() *cobra.Command {
	return newTLSIssue(&cobra.Command{
		Use:   "client NAME",
		Short: "Make the certificate of a client of the broker, which knows it as NAME",
		Long: `Makes NAME.crt and NAME.key, for a broker that asks its clients for certificates (Mosquitto: require_certificate,
use_identity_as_username). Nodes are such clients, too (broker.tls.certFile).`,
		Example: "  holdfast tls client line-7",
	}, cobra.ExactArgs(1), mqttAuthority, clientRequest)
}

func clientRequest(arguments []string) pki.Request {
	return pki.Request{Name: arguments[0], Use: pki.Client}
}

func newTLSRenew() *cobra.Command {
	var dir string
	command := &cobra.Command{
		Use:   "renew FILE.crt...",
		Short: "Make certificates again, with new keys, for as long as the old ones were valid",
		Long: `Replaces each certificate and its key by new ones with the same names. Their files keep owner and mode. Nodes use them for the
next connection, without a restart; it does no harm to renew before the old ones expire. Authorities cannot be renewed: see the
page on operations.`,
		Example: "  holdfast tls renew tls/n1.crt tls/alice.crt",
		Args:    positional(cobra.MinimumNArgs(1)),
		RunE: func(command *cobra.Command, files []string) error {
			for _, file := range files {
				if err := renew(dir, file, time.Now()); err != nil {
					return err
				}
				if err := showCertificates(command, file); err != nil {
					return err
				}
			}
			return nil
		},
	}
	command.Flags().StringVar(&dir, "dir", "tls", "`folder` of the authorities")
	return command
}

// renew renews a certificate by that of the two authorities that signed it.
func renew(dir, file string, now time.Time) error {
	base, found := strings.CutSuffix(file, ".crt")
	if !found {
		return usagef("%s: want the file of a certificate, NAME.crt, beside its key, NAME.key",
			file)
	}
	old, err := pki.Read(file)
	if err != nil {
		return &usageError{err}
	}
	if old[0].IsCA {
		return usagef("%s is an authority: what it signed would not be trusted any more", file)
	}
	if err := pki.CheckKey(old[0], base+".key"); err != nil {
		return &usageError{fmt.Errorf("%s is renewed with its key: %w", file, err)}
	}
	var faults []error
	for _, name := range []string{clusterAuthority, mqttAuthority} {
		authority := filepath.Join(dir, name)
		signer, err := pki.Load(authority+".crt", authority+".key")
		var pair pki.Pair
		if err == nil {
			pair, err = signer.Renew(old[0], now)
		}
		if err == nil {
			return pair.Write(file, base+".key")
		}
		faults = append(faults, err)
	}
	return &usageError{fmt.Errorf("%s cannot be renewed: %w", file, errors.Join(faults...))}
}

func newTLSShow() *cobra.Command {
	return &cobra.Command{
		Use:     "show FILE.crt...",
		Short:   "Say whom certificates are for, who signed them, and until when they are valid",
		Example: "  holdfast tls show tls/*.crt",
		Args:    positional(cobra.MinimumNArgs(1)),
		RunE: func(command *cobra.Command, files []string) error {
			for _, file := range files {
				if err := showCertificates(command, file); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func showCertificates(command *cobra.Command, file string) error {
	certificates, err := pki.Read(file)
	if err != nil {
		return &usageError{err}
	}
	for _, certificate := range certificates {
		if _, err := fmt.Fprintf(command.OutOrStdout(), "%s: %s\n", file,
			pki.Describe(certificate)); err != nil {
			return err
		}
	}
	return nil
}
