// The components of Kubernetes in one program, which acts as the component that it is called by: a link named kube-apiserver to it is
// kube-apiserver. The parts are the published Go modules, unchanged, but for two small ones of our own: the DNS of a cluster and the
// first process of a node. See README.md one folder up.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		go endWithOwner()
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		serve(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		serve(controllers.NewControllerManagerCommand())
	case "kube-scheduler":
		serve(scheduler.NewSchedulerCommand())
	case "kubelet":
		serve(kubelet.NewKubeletCommand(context.Background()))
	case "kube-proxy":
		serve(proxy.NewProxyCommand())
	case "cluster-dns":
		go endWithOwner()
		end(serveNames(os.Args[1:]))
	case "node-init":
		go endWithOwner()
		end(beNode(os.Args[1:]))
	default:
		fmt.Fprintf(os.Stderr, "error: there is no component %q here; call this program by a link named after one\n", name)
		os.Exit(64)
	}
}

func serve(command *cobra.Command) {
	go endWithOwner()
	os.Exit(cli.Run(command))
}

func end(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

// endWithOwner ends the process with the one that started it, however that ends: a pipe on standard input, which the owner
// holds, closes then. One byte through it lets this process go on alone. It takes the variable to ask for this.
func endWithOwner() {
	if os.Getenv("PORTCULLIS_OWNER") != "stdin" {
		return
	}
	if n, _ := os.Stdin.Read(make([]byte, 1)); n == 0 {
		fmt.Fprintln(os.Stderr, "the owner of this process has ended, and it ends with it")
		os.Exit(1)
	}
}
