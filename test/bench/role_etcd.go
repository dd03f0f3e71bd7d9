package main

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// newEtcdRole returns the command that runs a member of an etcd cluster with etcd's default
// settings.
func newEtcdRole() *cobra.Command {
	var name, dir, listen, peer, cluster string
	command := &cobra.Command{Use: "etcd", RunE: func(command *cobra.Command, _ []string) error {
		client, err := url.Parse("http://" + listen)
		if err != nil {
			return err
		}
		peers, err := url.Parse("http://" + peer)
		if err != nil {
			return err
		}
		config := embed.NewConfig()
		config.Name, config.Dir, config.InitialCluster, config.LogLevel = name, dir, cluster,
			"error"
		config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
		config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peers}, []url.URL{*peers}
		member, err := embed.StartEtcd(config)
		if err != nil {
			return err
		}
		defer member.Close()
		select {
		case <-command.Context().Done():
			return nil
		case err := <-member.Err():
			return err
		}
	}}
	flags := command.Flags()
	flags.StringVar(&name, "name", "", "")
	flags.StringVar(&dir, "dir", "", "")
	flags.StringVar(&listen, "listen", "", "")
	flags.StringVar(&peer, "peer", "", "")
	flags.StringVar(&cluster, "cluster", "", "")
	return command
}

type etcdStore struct{ clients []*clientv3.Client }

// openEtcd creates one client for each connection. A client connects when it is used, and spreads
// its requests over all members. A follower forwards writes to the leader.
func openEtcd(_ context.Context, addresses []string, connections int) (store, error) {
	s := &etcdStore{}
	for range connections {
		client, err := clientv3.New(clientv3.Config{Endpoints: addresses, Logger: zap.NewNop()})
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("etcd: %w", err)
		}
		s.clients = append(s.clients, client)
	}
	return s, nil
}

func (s *etcdStore) Set(ctx context.Context, connection int, key string, value []byte) error {
	_, err := s.clients[connection].Put(ctx, key, string(value))
	return err
}

// Get is linearizable, etcd's default.
func (s *etcdStore) Get(ctx context.Context, connection int, key string) error {
	_, err := s.clients[connection].Get(ctx, key)
	return err
}

func (s *etcdStore) Close() {
	for _, client := range s.clients {
		_ = client.Close() // everything is answered
	}
}
