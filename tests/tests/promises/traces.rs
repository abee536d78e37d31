//! Spans and metrics are exported by OTLP to a collector, which is part of the test.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use portcullis_contract::{BrokerExport, BrokerOutcome, BrokerReply, MAX_EXPORT, Signal, decode_frame, encode_frame};
use portcullis_tests::{Folder, LIMIT, Pod, PodSetup, Policy, Program, Raw, Review, eventually, request};
use prost::Message as _;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// One request to the collector.
#[derive(Clone)]
struct Export {
    head: String,
    body: Vec<u8>,
}

/// A collector that accepts OTLP over HTTP, and answers after a delay.
struct Collector {
    address: SocketAddr,
    exports: Arc<Mutex<Vec<Export>>>,
}

impl Collector {
    fn answering_after(delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("bound");
        let exports = Arc::<Mutex<Vec<Export>>>::default();
        let kept = Arc::clone(&exports);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                thread::spawn(move || answer(stream, &kept, delay));
            }
        });
        Self { address, exports }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn exports(&self) -> Vec<Export> {
        self.exports.lock().expect("not poisoned").clone()
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Span> {
        let decoded = |export: Export| ExportTraceServiceRequest::decode(export.body.as_slice()).expect("spans");
        let resources = self.exports().into_iter().flat_map(|export| decoded(export).resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }
}

/// Answers the requests of one connection.
fn answer(stream: TcpStream, exports: &Mutex<Vec<Export>>, delay: Duration) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            (reader.read_line(&mut head).ok()? > 0).then_some(())?;
        }
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length?];
        reader.read_exact(&mut body).ok()?;
        exports.lock().expect("not poisoned").push(Export { head, body });
        thread::sleep(delay);
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

/// An address on which no program listens.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("binds")
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    let value = found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref());
    value.map(|value| format!("{value:?}")).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pod(folder: &Folder, url: &str) -> PodSetup {
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let pod = Pod::on(folder).with(Program::Evaluator, &["--export-traces"]);
    pod.env(Program::Loader, ENDPOINT, url).env(Program::Loader, "OTEL_METRICS_EXPORTER", "none")
}

#[test]
fn promise_a_request_is_a_span_below_that_of_its_caller() {
    let (folder, collector) = (Folder::empty(), Collector::answering_after(Duration::ZERO));
    let pod = pod(&folder, &collector.url())
        .env(Program::Loader, "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
        .env(Program::Evaluator, "OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        .start();
    pod.wait_current("cluster/denies", 1);
    let traceparent = format!("00-{TRACE}-{CALLER}-01");
    let headers = [("content-type", "application/json"), ("traceparent", traceparent.as_str())];
    let mut client = Raw::tls(pod.admission()).expect("connects");
    let review = Review::pod();
    client.send(request("POST", "/validate/cluster/denies", &headers, review.bytes())).expect("sends");
    assert_eq!(client.response().expect("answers").status, 200);

    let admission = eventually("the span of the request", || {
        collector.spans().into_iter().find(|span| span.name == "admission" && hex(&span.trace_id) == TRACE)
    });
    assert_eq!(hex(&admission.parent_span_id), CALLER);
    assert!(attribute(&admission, "policy").contains("cluster/denies"), "{admission:?}");
    assert!(attribute(&admission, "uid").contains(review.uid()), "{admission:?}");
    let evaluation = eventually("the span of the evaluation", || {
        collector.spans().into_iter().find(|span| span.parent_span_id == admission.span_id)
    });
    assert_eq!(evaluation.name, "evaluation");
    assert!(attribute(&evaluation, "policy").contains("cluster/denies"), "{evaluation:?}");
    assert!(attribute(&evaluation, "verdict").contains("denied"), "{evaluation:?}");
    // Loads are spans too, each in a trace of its own.
    let load = eventually("the span of the load", || collector.spans().into_iter().find(|span| span.name == "load"));
    assert!(load.parent_span_id.is_empty() && hex(&load.trace_id) != TRACE, "{load:?}");

    for export in collector.exports() {
        let head = export.head.to_ascii_lowercase();
        assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
        assert!(head.contains("content-type: application/x-protobuf\r\n"), "{head}");
        assert!(head.contains("authorization: bearer secret\r\n"), "{head}");
        let resource = format!("{:?}", ExportTraceServiceRequest::decode(export.body.as_slice()).expect("spans"));
        assert!(resource.contains("portcullis-evaluator") && resource.contains("deployment.environment"), "{resource}");
    }
    // The evaluator itself cannot make connections.
    assert!(pod.metric("portcullis_seccomp_enforced") > 0.0);
    // Spans are counted after the collector has answered.
    let exported = || pod.metric(r#"portcullis_spans_total{outcome="exported"}"#);
    eventually("the count of exported spans", || (exported() >= 3.0).then_some(()));

    // An invalid header is ignored.
    let long = "0".repeat(9000);
    for bad in [long.as_str(), "00-zz-1-01"] {
        let headers = [("content-type", "application/json"), ("traceparent", bad)];
        client.send(request("POST", "/validate/cluster/denies", &headers, Review::pod().bytes())).expect("sends");
        assert_eq!(client.response().expect("answers").status, 200);
    }
}

#[test]
fn promise_a_collector_that_is_away_or_slow_delays_no_request() {
    for (slow, failed) in [(false, 100.0), (true, 1.0)] {
        let folder = Folder::empty();
        let collector = Collector::answering_after(Duration::from_secs(60));
        let url = if slow { collector.url() } else { format!("http://{}", nobody()) };
        // A request that waited for an export would take longer than the limit below.
        let pod = pod(&folder, &url).env(Program::Loader, "OTEL_EXPORTER_OTLP_TIMEOUT", "15000").start();
        pod.wait_current("cluster/denies", 1);
        let begin = Instant::now();
        while pod.metric(r#"portcullis_spans_total{outcome="failed"}"#) < failed {
            let ask = || pod.ask("cluster/denies", &Review::pod());
            let answer = pod.within(Duration::from_secs(10), "a request", ask);
            assert!(!answer.verdict().allowed);
            assert!(begin.elapsed() < 4 * LIMIT, "no export has failed");
        }
        let told = || pod.evaluator().lines().iter().filter(|line| line.contains("failed to export spans")).count();
        eventually("the line about it", || (told() > 0).then_some(()));
        assert_eq!(told(), 1, "it is logged once");
        pod.assert_alive();
    }
}

#[test]
fn promise_metrics_of_every_program_are_exported() {
    let (folder, collector) = (Folder::empty(), Collector::answering_after(Duration::ZERO));
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let mut pod = Pod::on(&folder).with(Program::Evaluator, &["--export-metrics"]);
    for program in [Program::Loader, Program::Reporter] {
        pod = pod.env(program, ENDPOINT, &collector.url()).env(program, "OTEL_TRACES_EXPORTER", "none");
    }
    for program in [Program::Loader, Program::Reporter, Program::Evaluator] {
        pod = pod.env(program, "OTEL_METRIC_EXPORT_INTERVAL", "1000");
    }
    let pod = pod.start();
    pod.wait_current("cluster/denies", 1);
    for _ in 0..3 {
        pod.ask("cluster/denies", &Review::pod());
    }
    // The last value that the program exported for a series with this label; if the label is empty, for any series of the metric.
    let exported = |program: &str, metric: &str, label: &str| -> Option<f64> {
        let bodies = collector.exports().into_iter().filter(|export| export.head.starts_with("POST /v1/metrics "));
        let requests =
            bodies.map(|export| ExportMetricsServiceRequest::decode(export.body.as_slice()).expect("metrics"));
        let resources = requests.flat_map(|request| request.resource_metrics);
        let mut of_program = resources.filter(|all| format!("{:?}", all.resource).contains(&format!("{program:?}")));
        let metrics = of_program.by_ref().flat_map(|all| all.scope_metrics).flat_map(|scope| scope.metrics);
        let points = metrics.filter(|one| one.name == metric).filter_map(|one| match one.data? {
            Data::Sum(sum) => Some(sum.data_points),
            Data::Gauge(gauge) => Some(gauge.data_points),
            _ => None,
        });
        let points = points.flatten().filter(|point| format!("{:?}", point.attributes).contains(label));
        points.last().and_then(|point| match point.value? {
            Value::AsDouble(value) => Some(value),
            Value::AsInt(_) => None,
        })
    };
    for (program, metric, label, value) in [
        ("portcullis-evaluator", "portcullis_policy_evaluations_total", "denied", 3.0),
        ("portcullis-evaluator", "portcullis_ready", "", 1.0),
        ("portcullis-loader", "portcullis_policies_published", "", 1.0),
        ("portcullis-loader", "portcullis_ready", "", 1.0),
        ("portcullis-reporter", "portcullis_ready", "", 1.0),
    ] {
        let text = format!("{metric} of {program} to be {value}");
        eventually(&text, || exported(program, metric, label).filter(|found| (found - value).abs() < 0.5));
    }
    let traces = collector.exports().into_iter().filter(|export| export.head.starts_with("POST /v1/traces ")).count();
    assert_eq!(traces, 0, "nobody asked for spans");
}

#[test]
fn promise_what_cannot_be_used_of_otlp_is_said_and_ends_no_program() {
    let folder = Folder::empty();
    let pod = pod(&folder, "http://127.0.0.1:4317").env(Program::Loader, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").start();
    pod.wait_current("cluster/denies", 1);
    let line = eventually("the line", || pod.loader().lines().into_iter().find(|line| line.contains("OTEL_")));
    assert!(line.contains("http/protobuf") && line.contains("4318"), "{line}");
    assert!(!pod.ask("cluster/denies", &Review::pod()).verdict().allowed);
}

/// Exports over the broker's socket, like an evaluator under the control of an attacker.
struct Hostile(UnixStream);

impl Hostile {
    fn export(&mut self, number: u64, body: &[u8]) -> (BrokerOutcome, String) {
        self.send(number, body);
        let (replied, outcome, text) = self.reply();
        assert_eq!(replied, number);
        (outcome, text)
    }

    fn send(&mut self, number: u64, body: &[u8]) {
        self.try_send(number, body).expect("sends");
    }

    fn try_send(&mut self, number: u64, body: &[u8]) -> io::Result<()> {
        let frame = encode_frame(&BrokerExport { number, export: Signal::Traces }, body).expect("encodes");
        let length = u32::try_from(frame.len()).expect("small").to_be_bytes();
        self.0.write_all(&[length.as_slice(), frame.as_slice()].concat())
    }

    /// The next reply, to any export.
    fn reply(&mut self) -> (u64, BrokerOutcome, String) {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).expect("a reply");
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut frame).expect("a reply");
        let (reply, start) = decode_frame::<BrokerReply>(&frame).expect("a reply");
        (reply.number, reply.outcome, String::from_utf8_lossy(&frame[start..]).into_owned())
    }
}

#[test]
fn promise_an_evaluator_that_was_taken_over_can_post_little_and_to_one_place() {
    let (folder, collector) = (Folder::empty(), Collector::answering_after(Duration::ZERO));
    std::fs::create_dir_all(folder.path("broker")).expect("a folder");
    let listener = UnixListener::bind(folder.path("broker/broker.sock")).expect("binds");
    let _pod = pod(&folder, &collector.url()).without(Program::Evaluator).begin();
    let mut hostile = Hostile(listener.accept().expect("the loader connects").0);
    let begin = Instant::now();
    assert_eq!(hostile.export(1, b"no protobuf"), (BrokerOutcome::Done, String::new()));
    let (outcome, text) = hostile.export(2, &vec![0; MAX_EXPORT + 1]);
    assert!(outcome == BrokerOutcome::Failed && text.contains("1048577 bytes"), "{text}");
    (3..200).for_each(|number| hostile.send(number, &[b'x'; 1000]));
    let replies: Vec<_> = (3..200).map(|_| hostile.reply()).collect();
    let done: Vec<_> = replies.iter().filter(|(_, outcome, _)| *outcome == BrokerOutcome::Done).collect();
    // The answer of the collector is not passed on.
    assert!(!done.is_empty() && done.iter().all(|(_, _, text)| text.is_empty()), "{done:?}");
    let exports = collector.exports();
    assert_eq!(exports.len(), done.len() + 1);
    // 20 exports at once, and one more every 50 ms, the first of which may be due earlier.
    let most = 21 + begin.elapsed().as_millis() / 50;
    assert!(exports.len() as u128 <= most, "{} exports, want at most {most}", exports.len());
    assert!(exports.iter().all(|export| export.head.starts_with("POST /v1/traces ")));
}

#[test]
fn promise_an_evaluator_that_reads_no_replies_is_cut_off() {
    let (folder, collector) = (Folder::empty(), Collector::answering_after(Duration::ZERO));
    std::fs::create_dir_all(folder.path("broker")).expect("a folder");
    let listener = UnixListener::bind(folder.path("broker/broker.sock")).expect("binds");
    let pod = pod(&folder, &collector.url()).without(Program::Evaluator).begin();
    let mut hostile = Hostile(listener.accept().expect("the loader connects").0);
    assert!((0..100_000).any(|number| hostile.try_send(number, b"x").is_err()), "all exports were read");
    eventually("the warning", || {
        pod.loader().lines().iter().any(|line| line.contains("reads no replies")).then_some(())
    });
    // The next connection works again.
    let mut next = Hostile(listener.accept().expect("the loader connects again").0);
    eventually("an export that is posted", || (next.export(1, b"x").0 == BrokerOutcome::Done).then_some(()));
}
