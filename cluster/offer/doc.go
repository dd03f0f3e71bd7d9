// Package offer replicates the settings that all members share. When the settings of a member
// change, the member offers the changed parts to the cluster, and the latest offer is in force
// everywhere. Each member stores what it offered last. So a restart with unchanged settings offers
// nothing, and brings back no older settings.
package offer
