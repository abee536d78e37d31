// The program of pods that are nothing but a test: it waits, serves, asks, looks up names, and floods ports. As "pause" it is what holds the
// namespaces of every pod.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const limit = 5 * time.Second

func main() {
	arguments := append(os.Args[1:], "", "")
	var err error
	switch arguments[0] {
	case "pause":
		pause()
	case "serve":
		go serve()
		pause()
	case "get":
		err = get(arguments[1])
	case "lookup":
		err = lookup(arguments[1], arguments[2])
	case "flood":
		if err = flood(arguments[1], os.Args[2:]); err == nil {
			pause()
		}
	default:
		err = fmt.Errorf("usage: pod pause | serve | get URL | lookup NAME [SERVER:PORT] | flood CONNECTIONS ADDRESS:PORT...")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// pause waits for a signal to end. Processes whose parent has ended are its children, when it is the first of the pod.
func pause() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && err != syscall.EINTR {
				break
			}
		}
	}
}

// serve answers every request at port 8080 with the name of the pod, and writes a line of it.
func serve() {
	name, _ := os.Hostname()
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		fmt.Println("asked for", request.URL.Path)
		fmt.Fprintln(answer, "this is", name)
	})
	fmt.Println("serving")
	fmt.Fprintln(os.Stderr, "error:", http.ListenAndServe(":8080", nil))
	os.Exit(1)
}

func get(url string) error {
	client := http.Client{Timeout: limit}
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, answer.Status)
	}
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

// flood keeps so many connections to each address, and makes another one a second after one is closed. Half of them say nothing, the
// others send a question and stay.
func flood(connections string, arguments []string) error {
	count, err := strconv.Atoi(connections)
	if err != nil {
		return err
	}
	for _, address := range arguments[1:] {
		for number := range count {
			go func() {
				for {
					if connection, err := net.DialTimeout("tcp", address, limit); err == nil {
						if number%2 == 0 {
							fmt.Fprintf(connection, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
						}
						io.Copy(io.Discard, connection)
						connection.Close()
					}
					// The node is to have time for others.
					time.Sleep(time.Second)
				}
			}()
		}
	}
	return nil
}

// lookup asks the name servers of the pod, or this one, over UDP.
func lookup(name, server string) error {
	within, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	resolver := net.Resolver{PreferGo: true}
	if server != "" {
		resolver.Dial = func(within context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(within, network, server)
		}
	}
	addresses, err := resolver.LookupHost(within, name)
	slices.Sort(addresses)
	for _, address := range addresses {
		fmt.Println(address)
	}
	return err
}
