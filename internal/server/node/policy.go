package node

import (
	"bytes"
	"context"
	"os"
	"time"

	"holdfast/cluster/offer"
	"holdfast/internal/policy/policyfile"
	"holdfast/internal/server/settings"
)

// NewOffer returns the offer of a node with these settings: the replicated settings and the policy
// that it asks the cluster for.
func NewOffer(s *settings.Settings) (offer.Offer, error) {
	wanted := offer.Offer{Settings: s.Replicated(), KeepPolicy: s.PolicyFile == ""}
	if s.PolicyFile != "" && s.PolicyFile != settings.None {
		policy, err := policyfile.Read(s.PolicyFile)
		if err != nil {
			return offer.Offer{}, err
		}
		wanted.Settings.Policy = policy
	}
	return wanted, nil
}

// followPolicy reads the policy file once a second. It offers a changed policy to the cluster once
// two reads in a row agree: the first one may have read a file that was being written. A file that
// does not parse leaves the old policy in force.
func (n *Node) followPolicy(ctx context.Context) {
	const interval = time.Second
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	// the first content counts as a change. If NewOffer read the same policy, offering it again
	// changes nothing
	var watched contentWatch
	readable := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		content, err := os.ReadFile(n.config.PolicyFile)
		if (err == nil) != readable {
			if readable = err == nil; readable {
				n.config.Log.Info("the policy file is readable again", "file", n.config.PolicyFile)
			} else {
				n.config.Log.Warn("the policy file cannot be read: the old policy stays in force",
					"file", n.config.PolicyFile, "error", err)
			}
		}
		if !watched.changed(content, err == nil) {
			continue
		}
		policy, err := policyfile.Parse(content)
		if err != nil {
			n.config.Log.Error("the policy file does not parse: the old policy stays in force",
				"file", n.config.PolicyFile, "error", err)
			continue
		}
		wanted := n.config.Offer
		wanted.Settings.Policy, wanted.KeepPolicy = policy, false
		n.Cluster.SetOffer(wanted)
		n.config.Log.Info("the policy file was read", "file", n.config.PolicyFile)
	}
}

// contentWatch detects a new content of a file that is read at intervals, once two reads in a row
// agree. Its zero value has seen no content.
type contentWatch struct {
	accepted []byte // content at the last reported change; nil before the first
	before   []byte // content at the previous read; nil if that read failed
}

// changed reports whether the content differs from that of the last change and equals that of the
// previous read. ok is false if the file cannot be read.
func (w *contentWatch) changed(content []byte, ok bool) bool {
	if !ok {
		w.before = nil
		return false
	}
	readTwice := w.before != nil && bytes.Equal(content, w.before)
	w.before = content
	if !readTwice || w.accepted != nil && bytes.Equal(content, w.accepted) {
		return false
	}
	w.accepted = content
	return true
}
