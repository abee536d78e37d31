package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// The first process of a node: a mount, network, process and host name namespace of its own, made by unshare(1), which all that
// runs on the node enters. The kernel ends all of it with this process: pods, mounts, interfaces and rules.

// Where things are inside, whatever their paths are outside. The paths of sockets must be short.
const (
	insideCluster  = "/run/cluster"
	insidePrograms = "/run/kubernetes"
)

// Folders in which parts of a node leave files at paths that nobody can choose. The machine's are neither seen nor touched.
var hidden = []string{"/run", "/var/lib", "/var/log"}

// beNode prepares the namespaces: --cluster=FOLDER --programs=FOLDER --name=NODE. It then writes the file "ready" to the folder of
// the node, and ends when its owner does.
func beNode(args []string) error {
	flags := flag.NewFlagSet("node-init", flag.ExitOnError)
	cluster := flags.String("cluster", "", "the folder of the cluster")
	programs := flags.String("programs", "", "the folder of the programs of Kubernetes")
	name := flags.String("name", "", "the name of the node")
	_ = flags.Parse(args)
	if os.Getpid() != 1 {
		return errors.New("it is not the first process of a process namespace: see unshare(1)")
	}
	if err := arrange(*cluster, *programs); err != nil {
		return err
	}
	if err := syscall.Sethostname([]byte(*name)); err != nil {
		return fmt.Errorf("failed to set the host name: %w", err)
	}
	if err := os.WriteFile(filepath.Join(insideCluster, *name, "ready"), nil, 0o600); err != nil {
		return err
	}
	reap()
	return errors.New("it was asked to end")
}

// arrange makes the mounts. Folders are opened before others are put over them, which may hide their paths.
func arrange(cluster, programs string) error {
	found := map[string]*os.File{}
	for inside, outside := range map[string]string{insideCluster: cluster, insidePrograms: programs} {
		folder, err := os.Open(outside)
		if err != nil {
			return err
		}
		defer folder.Close()
		found[inside] = folder
	}
	for _, path := range hidden {
		if err := syscall.Mount("tmpfs", path, "tmpfs", syscall.MS_NOSUID, "mode=755"); err != nil {
			return fmt.Errorf("failed to hide %s: %w", path, err)
		}
	}
	for inside, folder := range found {
		if err := os.Mkdir(inside, 0o755); err != nil {
			return err
		}
		outside := fmt.Sprintf("/proc/self/fd/%d", folder.Fd())
		if err := syscall.Mount(outside, inside, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("failed to mount %s at %s: %w", folder.Name(), inside, err)
		}
	}
	// Pods may ask for mounts of the node to reach them.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("failed to share mounts: %w", err)
	}
	return nil
}

// reap takes leave of processes whose parent has ended, until it is asked to end.
func reap() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 && err != syscall.EINTR {
				break
			}
		}
	}
}
