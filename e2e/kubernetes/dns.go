package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// The DNS of a cluster: A records of services, headless ones included, and of the pods behind those. Any other name does not
// exist, as a node of a test has no way out.

const (
	domain = ".svc.cluster.local."
	// What a client may go on believing, in seconds.
	ttl = 5
	// What fits a datagram for a client that says nothing else, in bytes.
	plainSize = 512
)

// names answers from what the informers know.
type names struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

// serveNames runs the server: --kubeconfig=FILE --listen=ADDRESS:PORT. It returns when it cannot go on.
func serveNames(args []string) error {
	flags := flag.NewFlagSet("cluster-dns", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "a file that says where the API server is")
	listen := flags.String("listen", "", "where to answer, over UDP and TCP")
	_ = flags.Parse(args)

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return fmt.Errorf("failed to read %s: %w", *kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	known := names{
		services: factory.Core().V1().Services().Lister(),
		slices:   factory.Discovery().V1().EndpointSlices().Lister(),
	}
	factory.Start(context.Background().Done())
	factory.WaitForCacheSync(context.Background().Done())

	packets, err := net.ListenPacket("udp", *listen)
	if err != nil {
		return err
	}
	streams, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "answering at", *listen)
	failed := make(chan error, 2)
	go func() { failed <- known.servePackets(packets) }()
	go func() { failed <- known.serveStreams(streams) }()
	return <-failed
}

func (n names) servePackets(packets net.PacketConn) error {
	buffer := make([]byte, 65535)
	for {
		size, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if answer := n.answer(buffer[:size], false); answer != nil {
			_, _ = packets.WriteTo(answer, from)
		}
	}
}

func (n names) serveStreams(streams net.Listener) error {
	for {
		stream, err := streams.Accept()
		if err != nil {
			return err
		}
		go n.serveStream(stream)
	}
}

// serveStream answers question after question, each behind its length.
func (n names) serveStream(stream net.Conn) {
	defer stream.Close()
	for {
		_ = stream.SetDeadline(time.Now().Add(10 * time.Second))
		var size uint16
		if binary.Read(stream, binary.BigEndian, &size) != nil {
			return
		}
		question := make([]byte, size)
		if _, err := io.ReadFull(stream, question); err != nil {
			return
		}
		answer := n.answer(question, true)
		if answer == nil {
			return
		}
		framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)
		if _, err := stream.Write(framed); err != nil {
			return
		}
	}
}

// answer makes the message for a question, and none for what is not one.
func (n names) answer(message []byte, isStream bool) []byte {
	var parser dnsmessage.Parser
	header, err := parser.Start(message)
	if err != nil || header.Response {
		return nil
	}
	question, err := parser.Question()
	if err != nil {
		return nil
	}
	limit := maxSize(&parser, isStream)
	addresses, exists := n.look(strings.ToLower(question.Name.String()))
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, OpCode: header.OpCode,
			RecursionDesired: header.RecursionDesired, RecursionAvailable: true,
		},
		Questions: []dnsmessage.Question{question},
	}
	of := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: ttl}
	if !exists {
		reply.RCode = dnsmessage.RCodeNameError
	}
	for _, address := range addresses {
		if question.Type == dnsmessage.TypeA || question.Type == dnsmessage.TypeALL {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: of, Body: &dnsmessage.AResource{A: address.As4()}})
		}
	}
	packed, err := reply.Pack()
	if err == nil && len(packed) > limit {
		// The client asks again over a stream.
		reply.Answers, reply.Truncated = nil, true
		packed, err = reply.Pack()
	}
	if err != nil {
		return nil
	}
	return packed
}

// maxSize is how long an answer may be, by what the client says behind its question.
func maxSize(parser *dnsmessage.Parser, isStream bool) int {
	if isStream {
		return 65535
	}
	if errors.Join(parser.SkipAllQuestions(), parser.SkipAllAnswers(), parser.SkipAllAuthorities()) != nil {
		return plainSize
	}
	for {
		additional, err := parser.AdditionalHeader()
		if err != nil {
			return plainSize
		}
		if additional.Type == dnsmessage.TypeOPT {
			return max(plainSize, int(additional.Class))
		}
		if parser.SkipAdditional() != nil {
			return plainSize
		}
	}
}

// look finds the addresses of a name, and whether there is such a name. A service that stands for a name outside of the cluster has
// none, as nothing is reached there.
func (n names) look(name string) (addresses []netip.Addr, exists bool) {
	inside, isService := strings.CutSuffix(name, domain)
	if !isService {
		// The parents of services exist and have no addresses.
		return nil, strings.HasSuffix(domain, "."+name)
	}
	parts := strings.Split(inside, ".")
	pod := ""
	if len(parts) == 3 {
		pod, parts = parts[0], parts[1:]
	}
	if len(parts) != 2 {
		return nil, false
	}
	service, err := n.services.Services(parts[1]).Get(parts[0])
	if err != nil {
		return nil, false
	}
	if service.Spec.ClusterIP == core.ClusterIPNone {
		addresses = n.endpoints(service, pod)
		return addresses, pod == "" || len(addresses) > 0
	}
	if pod != "" {
		return nil, false
	}
	if address, err := netip.ParseAddr(service.Spec.ClusterIP); err == nil && address.Is4() {
		addresses = append(addresses, address)
	}
	return addresses, true
}

// endpoints are the addresses of the ready pods of a headless service, or of the one that is called so.
func (n names) endpoints(service *core.Service, pod string) []netip.Addr {
	var found []netip.Addr
	ofService := labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: service.Name})
	all, _ := n.slices.EndpointSlices(service.Namespace).List(ofService)
	for _, slice := range all {
		for _, endpoint := range slice.Endpoints {
			if ready := endpoint.Conditions.Ready; ready != nil && !*ready {
				continue
			}
			for _, text := range endpoint.Addresses {
				address, err := netip.ParseAddr(text)
				if err != nil || !address.Is4() || slices.Contains(found, address) {
					continue
				}
				isNamed := endpoint.Hostname != nil && *endpoint.Hostname == pod
				if pod == "" || isNamed || strings.ReplaceAll(text, ".", "-") == pod {
					found = append(found, address)
				}
			}
		}
	}
	return found
}
