//! Takes spans from `tracing` into a queue, and from there in batches to an outlet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, Span, SpanData, SpanProcessor};
use prometheus::{IntCounter, Registry};
use prost::Message as _;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout_at;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;

use portcullis_contract::MAX_EXPORT;
use portcullis_util::LogOnce;

use crate::telemetry::Outlet;
use crate::telemetry::ids::Ids;
use crate::telemetry::resource::{attributes, resource};
use crate::telemetry::settings::sampler_problem;
use crate::{Shutdown, counters, supervised};

/// The most spans that wait to be exported. Further spans are dropped.
const QUEUE: usize = 2048;
/// The most spans of one export.
const BATCH: usize = 512;
/// How long a span waits for others that are exported with it.
const GATHER: Duration = Duration::from_secs(1);
/// The length of a `traceparent` of version 00.
const TRACEPARENT: usize = 55;

/// The spans of this program, before there is a runtime to export them.
pub struct Traces {
    provider: SdkTracerProvider,
    finished: mpsc::Receiver<SpanData>,
    dropped: Arc<AtomicU64>,
    resource: ResourceAttributesWithSchema,
}

/// Puts finished spans into the queue, or drops them if it is full. It never waits.
#[derive(Debug)]
struct Queue {
    finished: mpsc::Sender<SpanData>,
    dropped: Arc<AtomicU64>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.finished.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Traces {
    /// The spans of the program of this name, unless `OTEL_SERVICE_NAME` gives it another. The environment sets sampler and resource. This
    /// does not start a thread.
    pub fn new(program: &'static str) -> Self {
        let (sender, finished) = mpsc::channel(QUEUE);
        let dropped = Arc::<AtomicU64>::default();
        let queue = Queue { finished: sender, dropped: Arc::clone(&dropped) };
        let resource = resource(program);
        let attributes = attributes(&resource);
        let provider = SdkTracerProvider::builder()
            .with_id_generator(Ids)
            .with_resource(resource)
            .with_span_processor(queue)
            .build();
        Self { provider, finished, dropped, resource: attributes }
    }

    /// The layer that hands over the spans of our crates. Events only go to the log.
    pub(crate) fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: tracing::Subscriber + for<'span> tracing_subscriber::registry::LookupSpan<'span> + Send + Sync,
    {
        let layer = tracing_opentelemetry::layer()
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_target(false)
            .with_tracer(self.provider.tracer("portcullis"));
        let ours = filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("portcullis"));
        layer.with_filter(ours).boxed()
    }

    /// Exports spans again and again. Counts them in `registry`.
    ///
    /// # Errors
    /// When the registry already has metrics of these names.
    pub fn export(self, registry: &Registry, outlet: impl Outlet + 'static) -> prometheus::Result<()> {
        let spans = counters(
            registry,
            "portcullis_spans_total",
            "Spans by what became of them: exported, failed (the collector did not take them), dropped (too many waited)",
            &["outcome"],
        )?;
        let outcome = |name: &str| spans.with_label_values(&[name]);
        let counters =
            Counters { exported: outcome("exported"), failed: outcome("failed"), dropped: outcome("dropped") };
        if let Some(problem) = sampler_problem(|name| std::env::var(name).ok()) {
            tracing::warn!(problem, "the sampler of spans is not the one that was asked for");
        }
        // The task holds the lock until it panics; then the next task takes it.
        let (traces, work) = (Arc::new(Mutex::new(self)), Arc::new((counters, outlet)));
        supervised("the export of spans", &Shutdown::default(), move || {
            let (traces, work) = (Arc::clone(&traces), Arc::clone(&work));
            async move {
                let mut traces = traces.lock().await;
                traces.run(&work.0, &work.1).await;
            }
        });
        Ok(())
    }

    async fn run(&mut self, counters: &Counters, outlet: &impl Outlet) {
        let (mut log, mut is_dropping) = (LogOnce::default(), false);
        loop {
            let mut batch = Vec::with_capacity(BATCH);
            if self.finished.recv_many(&mut batch, BATCH).await == 0 {
                return;
            }
            let until = tokio::time::Instant::now() + GATHER;
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                match timeout_at(until, self.finished.recv_many(&mut batch, room)).await {
                    Ok(count) if count > 0 => {}
                    _ => break,
                }
            }
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            counters.dropped.inc_by(dropped);
            if dropped > 0 && !is_dropping {
                tracing::warn!(dropped, "spans are dropped: they end faster than they can be exported");
            }
            is_dropping = dropped > 0;
            for (body, count) in bodies(batch, &self.resource, counters) {
                match outlet.send(body).await {
                    Ok(()) => {
                        counters.exported.inc_by(count);
                        if log.works() {
                            tracing::info!("spans are exported again");
                        }
                    }
                    Err(problem) => {
                        counters.failed.inc_by(count);
                        if log.fails("", Instant::now()) {
                            let problem = problem.to_string();
                            tracing::warn!(problem, "failed to export spans; they are dropped until it works");
                        }
                    }
                }
            }
        }
    }
}

struct Counters {
    exported: IntCounter,
    failed: IntCounter,
    dropped: IntCounter,
}

/// Encoded exports, each within the size limit, with their numbers of spans. A span that alone is too large is dropped.
fn bodies(batch: Vec<SpanData>, resource: &ResourceAttributesWithSchema, counters: &Counters) -> Vec<(Bytes, u64)> {
    let count = batch.len();
    let request =
        |batch| ExportTraceServiceRequest { resource_spans: group_spans_by_resource_and_scope(batch, resource) };
    let body = request(batch.clone()).encode_to_vec();
    if body.len() <= MAX_EXPORT {
        return vec![(body.into(), u64::try_from(count).unwrap_or(u64::MAX))];
    }
    let each = batch.into_iter().map(|span| Bytes::from(request(vec![span]).encode_to_vec()));
    let (fit, large): (Vec<_>, Vec<_>) = each.partition(|body| body.len() <= MAX_EXPORT);
    counters.dropped.inc_by(u64::try_from(large.len()).unwrap_or(u64::MAX));
    fit.into_iter().map(|body| (body, 1)).collect()
}

/// The only header whose content is taken from a client that is not trusted.
struct TraceParent<'a>(&'a str);

impl Extractor for TraceParent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == "traceparent").then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

/// Makes `span` a child of the span that the request's `traceparent` names. Does nothing if there is no such header, several, or one of
/// another form. `tracestate` and `baggage` are not read.
pub fn adopt_parent(span: &tracing::Span, headers: &HeaderMap) {
    if let Some(parent) = parent(headers).filter(|_| !span.is_disabled()) {
        // An error means that spans are not exported, and then there is nothing to do.
        let _ = span.set_parent(parent);
    }
}

fn parent(headers: &HeaderMap) -> Option<Context> {
    let mut all = headers.get_all("traceparent").iter();
    let (first, second) = (all.next()?, all.next());
    let text = first.to_str().ok().filter(|text| second.is_none() && text.len() == TRACEPARENT)?;
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &TraceParent(text));
    context.span().span_context().is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::telemetry::ExportError;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    /// Keeps the bodies that it gets, and accepts or refuses them.
    #[derive(Clone, Default)]
    struct Collector {
        bodies: Arc<std::sync::Mutex<Vec<Bytes>>>,
        refuses: bool,
    }

    impl Outlet for Collector {
        async fn send(&self, body: Bytes) -> Result<(), ExportError> {
            self.bodies.lock().expect("not poisoned").push(body);
            if self.refuses { Err(ExportError::Broker("away".to_owned())) } else { Ok(()) }
        }
    }

    fn counters() -> Counters {
        let counter = |name: &str| IntCounter::new(name, "some").expect("a counter");
        Counters { exported: counter("a"), failed: counter("b"), dropped: counter("c") }
    }

    fn headers(values: &[&str]) -> HeaderMap {
        values
            .iter()
            .map(|value| (http::HeaderName::from_static("traceparent"), value.parse().expect("a value")))
            .collect()
    }

    #[test]
    fn a_parent_is_taken_from_one_good_header_only() {
        assert!(parent(&headers(&[PARENT])).is_some());
        let long = format!("{PARENT}-{}", "a".repeat(5000));
        for bad in [
            &[][..],
            &[""],
            &[PARENT, PARENT],
            &[&PARENT[1..]],
            &[long.as_str()],
            &["00-00000000000000000000000000000000-b7ad6b7169203331-01"],
            &["00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"],
            &["00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"],
            &["ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
            &["00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01"],
        ] {
            assert!(parent(&headers(bad)).is_none(), "{bad:?}");
        }
    }

    fn with_spans(traces: &Traces, make: impl FnOnce()) {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(traces.layer()), make);
    }

    async fn exported(mut traces: Traces, collector: &Collector) -> Counters {
        let counters = counters();
        let watched = Counters {
            exported: counters.exported.clone(),
            failed: counters.failed.clone(),
            dropped: counters.dropped.clone(),
        };
        let provider = traces.provider.clone();
        let outlet = collector.clone();
        let running = tokio::spawn(async move { traces.run(&counters, &outlet).await });
        let total = || watched.exported.get() + watched.failed.get();
        while total() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(provider);
        running.abort();
        watched
    }

    #[tokio::test]
    async fn a_span_is_exported_below_its_parent() {
        let (traces, collector) = (Traces::new("test"), Collector::default());
        with_spans(&traces, || {
            let span = tracing::debug_span!(target: "portcullis::test", "admission", policy = "cluster/a");
            adopt_parent(&span, &headers(&[PARENT]));
            let _inner = span.in_scope(|| tracing::debug_span!(target: "portcullis::test", "evaluation").entered());
            // Spans of other crates are not exported.
            let _other = tracing::info_span!(target: "hyper", "connection").entered();
        });
        assert_eq!(exported(traces, &collector).await.exported.get(), 2);
        let body = collector.bodies.lock().expect("not poisoned").remove(0);
        let request = ExportTraceServiceRequest::decode(body).expect("an export");
        let resource = format!("{:?}", request.resource_spans[0].resource);
        assert!(resource.contains("service.name") && resource.contains("test"), "{resource}");
        let spans = &request.resource_spans[0].scope_spans[0].spans;
        let outer = spans.iter().find(|span| span.name == "admission").expect("it is there");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&outer.trace_id), &PARENT[3..35]);
        assert_eq!(hex(&outer.parent_span_id), &PARENT[36..52]);
        assert!(outer.attributes.iter().any(|attribute| attribute.key == "policy"), "{outer:?}");
        let inner = spans.iter().find(|span| span.name == "evaluation").expect("it is there");
        assert_eq!((&inner.trace_id, &inner.parent_span_id), (&outer.trace_id, &outer.span_id));
    }

    #[tokio::test]
    async fn more_spans_than_wait_are_dropped_and_counted() {
        let (traces, collector) = (Traces::new("test"), Collector { refuses: true, ..Collector::default() });
        with_spans(&traces, || {
            for _ in 0..QUEUE + 7 {
                drop(tracing::debug_span!(target: "portcullis::test", "admission"));
            }
        });
        let counters = exported(traces, &collector).await;
        assert_eq!(counters.dropped.get(), 7);
        assert!(counters.failed.get() >= 512 && counters.exported.get() == 0);
    }

    #[tokio::test]
    async fn no_export_is_larger_than_its_limit() {
        let (traces, collector) = (Traces::new("test"), Collector::default());
        let text = "x".repeat(MAX_EXPORT / 3);
        with_spans(&traces, || {
            for _ in 0..5 {
                drop(tracing::debug_span!(target: "portcullis::test", "admission", text));
            }
            let text = "x".repeat(MAX_EXPORT);
            drop(tracing::debug_span!(target: "portcullis::test", "admission", text));
        });
        let counters = exported(traces, &collector).await;
        let bodies = collector.bodies.lock().expect("not poisoned");
        assert!(bodies.iter().all(|body| body.len() <= MAX_EXPORT));
        assert_eq!(counters.dropped.get(), 1);
    }
}
