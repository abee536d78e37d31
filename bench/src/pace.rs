//! Requests at a fixed rate, whatever becomes of earlier ones, as they come from many clients.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::load::{Connection, Load, Target};

/// The most requests under way. Each has a connection, and a process may have only so many descriptors.
const MOST: usize = 500;

/// A request that has ended.
struct Call {
    answer: anyhow::Result<Value>,
    took: Duration,
    /// The connection, if it can be used again.
    connection: Option<Connection>,
}

impl Target {
    /// Sends `per_second` requests a second for `time`, and waits for the answers. Where too many are under way, a request is not sent and
    /// counts as an error.
    pub(crate) async fn load_at(&self, per_second: f64, time: Duration, body: &Bytes) -> anyhow::Result<Load> {
        let mut pace = tokio::time::interval(Duration::from_secs_f64(1.0 / per_second));
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (mut load, mut under_way) = (Load::default(), JoinSet::new());
        let mut idle: Vec<Connection> = Vec::new();
        let start = Instant::now();
        while start.elapsed() < time {
            pace.tick().await;
            while let Some(ended) = under_way.try_join_next() {
                idle.extend(add(&mut load, ended?));
            }
            if under_way.len() < MOST {
                under_way.spawn(call(self.clone(), idle.pop(), body.clone()));
            } else {
                load.errors += 1;
            }
        }
        while let Some(ended) = under_way.join_next().await {
            add(&mut load, ended?);
        }
        load.time = start.elapsed();
        Ok(load)
    }
}

/// Adds a call to the results; returns its connection.
fn add(load: &mut Load, call: Call) -> Option<Connection> {
    load.add(&call.answer, call.took);
    call.connection
}

/// Sends one request on an idle connection, or on a new one as an API server would. Opening it does not count.
async fn call(target: Target, idle: Option<Connection>, body: Bytes) -> Call {
    let connection = match idle.filter(Connection::is_open) {
        Some(connection) => Ok(connection),
        None => target.connect().await,
    };
    let mut connection = match connection {
        Ok(connection) => connection,
        Err(error) => return Call { answer: Err(error), took: Duration::ZERO, connection: None },
    };
    let start = Instant::now();
    let answer = connection.ask(body).await;
    let took = start.elapsed();
    let connection = answer.is_ok().then_some(connection);
    Call { answer, took, connection }
}
