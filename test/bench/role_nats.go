package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
)

// newNATSRole returns the command that runs a member of a NATS cluster. Its JetStream syncs every
// write to the disk.
func newNATSRole() *cobra.Command {
	var name, dir, listen, peer, routes string
	command := &cobra.Command{Use: "nats", RunE: func(command *cobra.Command, _ []string) error {
		client, err := net.ResolveTCPAddr("tcp", listen)
		if err != nil {
			return err
		}
		cluster, err := net.ResolveTCPAddr("tcp", peer)
		if err != nil {
			return err
		}
		options := &server.Options{
			ServerName: name, Host: client.IP.String(), Port: client.Port, JetStream: true,
			StoreDir: dir, NoSigs: true,
			SyncAlways: true, SyncInterval: 2 * time.Minute, // what `sync_interval: always` sets
			Cluster: server.ClusterOpts{
				Name: "bench", Host: cluster.IP.String(),
				Port: cluster.Port,
			},
			JetStreamMaxMemory: 1 << 30, JetStreamMaxStore: 64 << 30,
		}
		for _, route := range strings.Split(routes, ",") {
			options.Routes = append(options.Routes, &url.URL{Scheme: "nats", Host: route})
		}
		member, err := server.NewServer(options)
		if err != nil {
			return err
		}
		member.Start()
		<-command.Context().Done()
		member.Shutdown()
		return nil
	}}
	flags := command.Flags()
	flags.StringVar(&name, "name", "", "")
	flags.StringVar(&dir, "dir", "", "")
	flags.StringVar(&listen, "listen", "", "")
	flags.StringVar(&peer, "peer", "", "")
	flags.StringVar(&routes, "routes", "", "")
	return command
}

type natsStore struct {
	connections []*nats.Conn
	buckets     []jetstream.KeyValue
}

// openNATS connects, and makes the bucket with as many replicas as there are servers.
func openNATS(ctx context.Context, addresses []string, connections int) (store, error) {
	s := &natsStore{}
	for range connections {
		connection, err := nats.Connect(strings.Join(addresses, ","))
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("nats: %w", err)
		}
		s.connections = append(s.connections, connection)
		stream, err := jetstream.New(connection)
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("nats: %w", err)
		}
		bucket, err := stream.CreateOrUpdateKeyValue(ctx,
			jetstream.KeyValueConfig{
				Bucket: "bench", Replicas: len(addresses),
				Storage: jetstream.FileStorage,
			})
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("nats: %w", err)
		}
		s.buckets = append(s.buckets, bucket)
	}
	return s, nil
}

func (s *natsStore) Set(ctx context.Context, connection int, key string, value []byte) error {
	_, err := s.buckets[connection].Put(ctx, key, value)
	return err
}

// Get is a direct get: any replica answers, so it is not linearizable.
func (s *natsStore) Get(ctx context.Context, connection int, key string) error {
	_, err := s.buckets[connection].Get(ctx, key)
	return err
}

func (s *natsStore) Close() {
	for _, connection := range s.connections {
		connection.Close()
	}
}

func loopbackAddress(n int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n)) }
