// Package offer replicates the settings that all members share. When those of a member change, it offers the changed parts to the
// cluster, and the latest offer is in force everywhere. A member remembers what it offered last: a restart with the same settings offers
// nothing, so it brings back no older ones.
package offer
