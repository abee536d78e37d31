//! The metrics that every program has besides its own.

use std::time::Instant;

use axum::body::Bytes;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use tokio::sync::Mutex;

use crate::{Readiness, VERSION};

/// Registers a metric.
///
/// # Errors
/// When its name is in use already.
pub fn registered<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// A registered counter.
///
/// # Errors
/// When its name is taken.
pub fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    registered(registry, IntCounter::new(name, help)?)
}

/// Registered counters with these labels.
///
/// # Errors
/// When their name is taken.
pub fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
}

/// A registered gauge.
///
/// # Errors
/// When its name is taken.
pub fn gauge(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntGauge> {
    registered(registry, IntGauge::new(name, help)?)
}

/// Registered gauges with these labels.
///
/// # Errors
/// When their name is taken.
pub fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
    registered(registry, IntGaugeVec::new(Opts::new(name, help), labels)?)
}

/// The metrics that every program registers.
pub(crate) struct CommonMetrics;

/// The metric `portcullis_ready`, which is computed whenever metrics are read or exported.
struct Ready {
    gauge: IntGauge,
    readiness: Readiness,
}

impl Collector for Ready {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set(i64::from(self.readiness.is_ready()));
        self.gauge.collect()
    }
}

impl CommonMetrics {
    /// Registers all of them.
    ///
    /// # Errors
    /// When a name is in use already.
    pub(crate) fn register(
        registry: &Registry,
        readiness: &Readiness,
        probe_connections_closed: &IntCounter,
    ) -> prometheus::Result<()> {
        let gauge = IntGauge::new("portcullis_ready", "1 while the program is ready, as /readyz says")?;
        let ready = Ready { gauge, readiness: readiness.clone() };
        let build = IntGauge::with_opts(
            Opts::new("portcullis_build_info", "1, with the version of the program").const_label("version", VERSION),
        )?;
        build.set(1);
        registry.register(Box::new(ready))?;
        registry.register(Box::new(build))?;
        registry.register(Box::new(probe_connections_closed.clone()))
    }

    /// The counter of connections that the probe server closed. Its ports are bound before the registry is known.
    pub(crate) fn probe_connections_closed() -> IntCounter {
        IntCounter::new(
            "portcullis_probe_connections_closed_total",
            "Connections of the probe and state ports closed to make room",
        )
        .expect("the name is one of a metric")
    }
}

/// The text of `/metrics`. With many policies it takes a while to make, and that is done on the thread that answers
/// probes. So requests at the same time share one text, and between two texts that thread has three times as long for
/// other requests.
#[derive(Default)]
pub(crate) struct Exposition(Mutex<Option<Made>>);

struct Made {
    begun: Instant,
    ended: Instant,
    text: Bytes,
}

impl Exposition {
    /// A text that `make` began to make after this call.
    ///
    /// # Errors
    /// When `make` fails.
    pub(crate) async fn text<E>(&self, make: impl FnOnce() -> Result<String, E>) -> Result<Bytes, E> {
        let asked = Instant::now();
        let mut made = self.0.lock().await;
        if let Some(made) = &*made {
            if made.begun >= asked {
                return Ok(made.text.clone());
            }
            tokio::time::sleep_until((made.ended + (made.ended - made.begun) * 3).into()).await;
        }
        let begun = Instant::now();
        let text = Bytes::from(make()?);
        *made = Some(Made { begun, ended: Instant::now(), text: text.clone() });
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use prometheus::TextEncoder;

    use super::*;

    fn text(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).expect("encodes")
    }

    #[test]
    fn readiness_is_a_metric_as_well() {
        let (registry, readiness) = (Registry::new(), Readiness::default());
        let closed = CommonMetrics::probe_connections_closed();
        CommonMetrics::register(&registry, &readiness, &closed).expect("registers");
        let latch = readiness.latch("started");
        assert!(text(&registry).contains("\nportcullis_ready 0\n"), "{}", text(&registry));
        latch.release();
        assert!(text(&registry).contains("\nportcullis_ready 1\n"), "{}", text(&registry));
        assert!(text(&registry).contains(&format!("portcullis_build_info{{version=\"{VERSION}\"}} 1\n")));
    }

    #[tokio::test]
    async fn who_asks_at_the_same_time_gets_the_same_text() {
        let exposition = Exposition::default();
        let count = Cell::new(0);
        let make = || {
            count.set(count.get() + 1);
            std::thread::sleep(Duration::from_millis(5));
            Ok::<_, ()>(count.get().to_string())
        };
        // The text for the first request is being made when the others come, and all of these get the next text.
        assert_eq!(exposition.text(make).await.expect("it is made"), "1");
        let asked = futures::future::join_all((0..20).map(|_| exposition.text(make))).await;
        assert!(asked.iter().all(|text| text.as_deref() == Ok(b"2")), "{asked:?}");
        assert_eq!(exposition.text(make).await.expect("it is made"), "3");
    }
}
