// Package offer brings the settings of one member into force in the whole cluster: the settings are replicated, and the last
// change on any member wins. A member remembers what it offered last, so that no restart brings back older settings.
package offer
