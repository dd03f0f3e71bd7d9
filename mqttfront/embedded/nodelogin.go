package embedded

import (
	"crypto/subtle"
	"strings"

	mqtt "github.com/mochi-mqtt/server/v2"
)

// nodeLogin tells the store's own nodes from clients.
type nodeLogin struct{ config *Config }

// isNode reports whether a client is one of the store's own nodes: by its client id if the broker
// is Open, otherwise by its login.
func (n nodeLogin) isNode(client *mqtt.Client, password []byte) bool {
	if n.config.Open {
		return n.reserved(client.ID)
	}
	if n.config.NodePassword == nil {
		return false
	}
	expected := n.config.NodePassword()
	return len(expected) > 0 && string(client.Properties.Username) == n.config.NodeUsername &&
		subtle.ConstantTimeCompare(password, expected) == 1
}

// takeoverProbeSuffixLen is the length of the end of a takeover probe's client id: -in- and eight
// hexadecimal digits. A takeover probe is a second connection of a node, which shows whether its
// session ended alone.
const takeoverProbeSuffixLen = 12

// reserved reports whether a client id is one under which nodes connect.
func (n nodeLogin) reserved(clientID string) bool {
	rest, ok := strings.CutPrefix(clientID, n.config.Cluster+"-")
	return ok && (strings.HasSuffix(rest, "-in") || strings.HasSuffix(rest, "-presence") ||
		strings.HasPrefix(rest, "out-") || rest == "ingest" ||
		len(rest) > takeoverProbeSuffixLen &&
			rest[len(rest)-takeoverProbeSuffixLen:len(rest)-8] == "-in-")
}
