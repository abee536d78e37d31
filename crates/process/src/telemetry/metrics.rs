//! Metrics by OTLP: what `/metrics` shows, converted and exported again and again.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use portcullis_contract::MAX_EXPORT;
use portcullis_util::LogOnce;
use prometheus::proto::{LabelPair, Metric as Series, MetricFamily, MetricType};
use prometheus::{IntCounterVec, Registry};
use prost::Message as _;

use crate::telemetry::resource::{attributes, resource};
use crate::telemetry::{ExportError, Outlet};
use crate::{Shutdown, VERSION, counters, supervised};

/// The interval, unless `OTEL_METRIC_EXPORT_INTERVAL` sets another.
const INTERVAL: Duration = Duration::from_secs(60);
/// The shortest interval.
const SHORTEST: Duration = Duration::from_secs(1);
/// The most series of one metric in one export.
const SERIES: usize = 500;

/// Exports all metrics of `registry` as those of `program`, again and again. Counts exports in the registry itself.
///
/// # Errors
/// When the registry already has a metric of this name.
pub fn export_metrics(
    program: &'static str,
    registry: Registry,
    outlet: impl Outlet + 'static,
) -> prometheus::Result<()> {
    let exports = counters(
        &registry,
        "portcullis_metric_exports_total",
        "Exports of metrics by OTLP, by outcome (done, failed)",
        &["outcome"],
    )?;
    let text = std::env::var("OTEL_METRIC_EXPORT_INTERVAL").ok();
    let interval = interval(text.as_deref()).unwrap_or_else(|| {
        tracing::warn!(
            seconds = INTERVAL.as_secs(),
            "OTEL_METRIC_EXPORT_INTERVAL is not a number of milliseconds; the usual interval is used"
        );
        INTERVAL
    });
    let resource = attributes(&resource(program)).attributes.0;
    let exporter = Arc::new(Exporter { registry, exports, resource, start: now(), interval, outlet });
    supervised("the export of metrics", &Shutdown::default(), move || Arc::clone(&exporter).run());
    Ok(())
}

struct Exporter<O> {
    registry: Registry,
    exports: IntCounterVec,
    resource: Vec<KeyValue>,
    start: u64,
    interval: Duration,
    outlet: O,
}

impl<O: Outlet + 'static> Exporter<O> {
    /// Exports again and again. Never returns.
    async fn run(self: Arc<Self>) {
        let mut log = LogOnce::default();
        let mut turns = tokio::time::interval_at(tokio::time::Instant::now() + self.interval, self.interval);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            let result = self.export().await;
            let outcome = if result.is_ok() { "done" } else { "failed" };
            self.exports.with_label_values(&[outcome]).inc();
            match result {
                Ok(()) if log.works() => tracing::info!("metrics are exported again"),
                Err(problem) if log.fails("", Instant::now()) => {
                    let problem = problem.to_string();
                    tracing::warn!(problem, "failed to export metrics; the next export has them again");
                }
                _ => {}
            }
        }
    }

    async fn export(self: &Arc<Self>) -> Result<(), ExportError> {
        let exporter = Arc::clone(self);
        // Encoding takes a while if there are many series, and must not hold up the requests that share this thread.
        let encode = move || bodies(&exporter.registry.gather(), &exporter.resource, exporter.start, now());
        let encoded = tokio::task::spawn_blocking(encode).await;
        for body in encoded.map_err(ExportError::Encode)? {
            self.outlet.send(body).await?;
        }
        Ok(())
    }
}

/// The interval that the environment sets, in milliseconds; `None` if the text is not a valid interval.
fn interval(text: Option<&str>) -> Option<Duration> {
    match text.map(str::trim) {
        None | Some("") => Some(INTERVAL),
        Some(text) => text.parse::<u64>().ok().map(|milliseconds| Duration::from_millis(milliseconds).max(SHORTEST)),
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Encoded exports of all metrics, each within the size limit.
fn bodies(families: &[MetricFamily], resource: &[KeyValue], start: u64, now: u64) -> Vec<Bytes> {
    let (mut bodies, mut metrics, mut size) = (Vec::new(), Vec::new(), 0);
    let converted = families.iter().flat_map(|family| {
        family.get_metric().chunks(SERIES).filter_map(move |series| converted(family, series, start, now))
    });
    for metric in converted {
        let length = metric.encoded_len() + 8;
        // The fields around the metrics fit in the 64 KiB that are kept free.
        if size + length > MAX_EXPORT - (64 << 10) && !metrics.is_empty() {
            bodies.push(request(std::mem::take(&mut metrics), resource));
            size = 0;
        }
        size += length;
        metrics.push(metric);
    }
    if !metrics.is_empty() {
        bodies.push(request(metrics, resource));
    }
    bodies
}

fn request(metrics: Vec<Metric>, resource: &[KeyValue]) -> Bytes {
    let scope =
        InstrumentationScope { name: "portcullis".to_owned(), version: VERSION.to_owned(), ..Default::default() };
    let request = ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes: resource.to_vec(), ..Default::default() }),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, ..Default::default() }],
            ..Default::default()
        }],
    };
    request.encode_to_vec().into()
}

/// Some series of a metric; `None` for kinds of metrics that no program has.
fn converted(family: &MetricFamily, series: &[Series], start: u64, now: u64) -> Option<Metric> {
    let temporality = AggregationTemporality::Cumulative.into();
    let numbers = |value: fn(&Series) -> f64, since: u64| -> Vec<NumberDataPoint> {
        let point = |one: &Series| NumberDataPoint {
            attributes: labels(one.get_label()),
            start_time_unix_nano: since,
            time_unix_nano: now,
            value: Some(number_data_point::Value::AsDouble(value(one))),
            ..Default::default()
        };
        series.iter().map(point).collect()
    };
    let data = match family.get_field_type() {
        MetricType::COUNTER => Data::Sum(Sum {
            data_points: numbers(|one| one.get_counter().get_value(), start),
            aggregation_temporality: temporality,
            is_monotonic: true,
        }),
        MetricType::GAUGE => Data::Gauge(Gauge { data_points: numbers(|one| one.get_gauge().get_value(), 0) }),
        MetricType::HISTOGRAM => Data::Histogram(Histogram {
            data_points: series.iter().map(|one| histogram(one, start, now)).collect(),
            aggregation_temporality: temporality,
        }),
        _ => return None,
    };
    Some(Metric {
        name: family.name().to_owned(),
        description: family.help().to_owned(),
        data: Some(data),
        ..Default::default()
    })
}

/// Prometheus counts all values up to a bound, OTLP counts those between two bounds.
fn histogram(series: &Series, start: u64, now: u64) -> HistogramDataPoint {
    let histogram = series.get_histogram();
    let count = histogram.get_sample_count();
    let finite = || histogram.get_bucket().iter().filter(|bucket| bucket.upper_bound().is_finite());
    let ends = finite().map(|bucket| bucket.cumulative_count()).chain([count]);
    let bucket_counts = ends.scan(0, |before, end| Some(end.saturating_sub(std::mem::replace(before, end))));
    HistogramDataPoint {
        attributes: labels(series.get_label()),
        start_time_unix_nano: start,
        time_unix_nano: now,
        count,
        sum: Some(histogram.get_sample_sum()),
        bucket_counts: bucket_counts.collect(),
        explicit_bounds: finite().map(|bucket| bucket.upper_bound()).collect(),
        ..Default::default()
    }
}

/// Labels as attributes. Empty ones are left out: to Prometheus they are the same as missing ones.
fn labels(pairs: &[LabelPair]) -> Vec<KeyValue> {
    let pairs = pairs.iter().filter(|pair| !pair.value().is_empty());
    let attribute = |pair: &LabelPair| KeyValue {
        key: pair.name().to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(pair.value().to_owned())) }),
        ..Default::default()
    };
    pairs.map(attribute).collect()
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntGauge, Opts};

    use super::*;

    fn decoded(registry: &Registry) -> Vec<Vec<Metric>> {
        let bodies = bodies(&registry.gather(), &[], 1, 2);
        assert!(bodies.iter().all(|body| body.len() <= MAX_EXPORT));
        let request = |body| ExportMetricsServiceRequest::decode(body).expect("an export");
        bodies
            .into_iter()
            .map(|body| request(body).resource_metrics.remove(0).scope_metrics.remove(0).metrics)
            .collect()
    }

    fn data(registry: &Registry) -> Data {
        decoded(registry).remove(0).remove(0).data.expect("data")
    }

    #[test]
    fn counters_are_sums_and_gauges_are_gauges() {
        let registry = Registry::new();
        let counter = IntCounter::new("a_total", "some").expect("a counter");
        registry.register(Box::new(counter.clone())).expect("registers");
        counter.inc_by(7);
        let Data::Sum(sum) = data(&registry) else { panic!("no sum") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
        assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsDouble(7.0)));
        assert_eq!((sum.data_points[0].start_time_unix_nano, sum.data_points[0].time_unix_nano), (1, 2));
        let registry = Registry::new();
        let gauge = IntGauge::new("a", "some").expect("a gauge");
        registry.register(Box::new(gauge.clone())).expect("registers");
        gauge.set(-3);
        let Data::Gauge(gauge) = data(&registry) else { panic!("no gauge") };
        assert_eq!(gauge.data_points[0].value, Some(number_data_point::Value::AsDouble(-3.0)));
    }

    #[test]
    fn a_histogram_has_counts_between_its_bounds_and_no_empty_labels() {
        let registry = Registry::new();
        let opts = HistogramOpts::new("a", "some").buckets(vec![1.0, 2.0, 4.0]);
        let histogram = HistogramVec::new(opts, &["x", "y"]).expect("a histogram");
        registry.register(Box::new(histogram.clone())).expect("registers");
        for value in [0.5, 1.5, 1.5, 9.0] {
            histogram.with_label_values(&["1", ""]).observe(value);
        }
        let Data::Histogram(histogram) = data(&registry) else { panic!("no histogram") };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (4, Some(12.5)));
        assert_eq!((&point.bucket_counts, &point.explicit_bounds), (&vec![1, 2, 0, 1], &vec![1.0, 2.0, 4.0]));
        assert_eq!(point.attributes.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), ["x"]);
    }

    #[test]
    fn many_series_are_several_exports() {
        let registry = Registry::new();
        let counter = IntCounterVec::new(Opts::new("a_total", "some"), &["x"]).expect("a counter");
        registry.register(Box::new(counter.clone())).expect("registers");
        for n in 0..20_000 {
            counter.with_label_values(&[&format!("{n:0100}")]).inc();
        }
        let exports = decoded(&registry);
        assert!(exports.len() > 1, "{}", exports.len());
        let points = exports.into_iter().flatten().map(|metric| match metric.data {
            Some(Data::Sum(sum)) => sum.data_points.len(),
            _ => 0,
        });
        assert_eq!(points.sum::<usize>(), 20_000);
    }

    #[test]
    fn intervals() {
        for (text, seconds) in [(None, 60), (Some(" "), 60), (Some("5000"), 5), (Some("1"), 1)] {
            assert_eq!(interval(text), Some(Duration::from_secs(seconds)));
        }
        assert_eq!(interval(Some("10s")), None);
    }
}
