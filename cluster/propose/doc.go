// Package propose turns commands into log entries.
package propose
