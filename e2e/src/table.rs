//! Clusters as text for users.

use std::time::Duration;

use portcullis_e2e::{Health, Running, VERSION};

/// The output of `up`: the cluster, and the line that makes kubectl use it. For a cluster that existed before, `took`
/// is `None`.
pub(crate) fn up(cluster: &Running, took: Option<Duration>) -> String {
    let took = took.map_or_else(|| "already".to_owned(), |took| format!("after {:.1} s", took.as_secs_f64()));
    format!(
        "cluster {} is up {took}: Kubernetes {VERSION} at {}\n\nexport KUBECONFIG={}\n",
        cluster.name,
        cluster.api_servers.join(" and "),
        cluster.kubeconfig.display(),
    )
}

/// One line per cluster, below headings, and a line for each of its processes that has ended.
pub(crate) fn clusters(all: &[Running]) -> String {
    if all.is_empty() {
        return "no clusters\n".to_owned();
    }
    let mut rows = vec![["NAME", "STATE", "API SERVERS", "MEMORY", "ENDS WITH", "KUBECONFIG"].map(str::to_owned)];
    rows.extend(all.iter().map(|cluster| {
        [
            cluster.name.clone(),
            state(cluster.state).to_owned(),
            cluster.api_servers.join(","),
            format!("{} MiB", cluster.memory() >> 20),
            cluster.owner.map_or_else(|| "down".to_owned(), |owner| format!("process {owner}")),
            cluster.kubeconfig.display().to_string(),
        ]
    }));
    let widths: [usize; 6] = std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += cells.join("   ").trim_end();
        text.push('\n');
    }
    for cluster in all {
        for process in cluster.processes.iter().filter(|process| process.memory.is_none()) {
            text += &format!("{}: {} (process {}) has ended\n", cluster.name, process.name, process.pid);
        }
    }
    text
}

fn state(state: Health) -> &'static str {
    match state {
        Health::Starting => "starting",
        Health::Up => "up",
        Health::Degraded => "degraded",
        Health::Abandoned => "abandoned",
    }
}

#[cfg(test)]
mod tests {
    use portcullis_e2e::Process;

    use super::*;

    fn cluster() -> Running {
        let process = |name: &str, memory| Process { name: name.to_owned(), pid: 7, memory };
        Running {
            name: "default".to_owned(),
            state: Health::Degraded,
            kubeconfig: "/c/0/kubeconfig".into(),
            api_servers: vec!["https://198.18.0.1:6443".to_owned()],
            node: false,
            owner: None,
            processes: vec![process("etcd", None), process("kube-apiserver-1", Some(300 << 20))],
        }
    }

    #[test]
    fn a_cluster_is_a_line_and_an_ended_process_another() {
        assert_eq!(
            clusters(&[cluster()]),
            "NAME      STATE      API SERVERS               MEMORY    ENDS WITH   KUBECONFIG\n\
             default   degraded   https://198.18.0.1:6443   300 MiB   down        /c/0/kubeconfig\n\
             default: etcd (process 7) has ended\n",
        );
        assert_eq!(clusters(&[]), "no clusters\n");
    }

    #[test]
    fn the_line_to_copy_stands_alone() {
        let text = up(&cluster(), Some(Duration::from_millis(4840)));
        assert_eq!(
            text,
            "cluster default is up after 4.8 s: Kubernetes v1.36.3 at https://198.18.0.1:6443\n\n\
             export KUBECONFIG=/c/0/kubeconfig\n",
        );
    }
}
