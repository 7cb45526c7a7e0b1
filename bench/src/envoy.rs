//! Envoy: what a question of its rate limit service costs, compared with others on the same stack.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use h2::client::SendRequest;
use http::Request;
use quell_envoy::proto::{
    Code, Descriptor, Entry, RateLimitRequest, RateLimitResponse, RateLimitServiceClient,
};
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::draws::{Spread, draw, key};
use crate::machine::bench_folder;
use crate::processes::{Running, built_quell, free_address, on_path};
use crate::redis::start_redis;
use crate::report::{Report, progress, ratio};
use crate::table::Table;

pub(crate) mod rivals;
mod throttlecrab;
mod through;

use rivals::Kind;

const QUESTION: &str = "What does a question of Envoy cost?";
const OVERHEAD: &str = "Thousands per second, ratios of medians, and the processor time that a server spends on a \
    question. Client and server share this machine's cores, so the client takes its part of the rate; it takes none \
    of the processor time.";

/// The method that Envoy calls.
const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Connections, and questions on each at a time.
const CONNECTIONS: usize = 8;
const AT_A_TIME: usize = 10;

/// Number of different keys where there are many.
const KEYS: usize = 100_000;

/// The case with many keys.
const MANY: &str = "100,000 keys, h2";

/// Settings of `bench envoy`.
#[derive(Args, Debug, Serialize)]
pub(crate) struct Settings {
    /// Runs of each rival; rivals alternate.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Length of one run.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Count on a Redis, which each rival has for itself.
    #[arg(long)]
    redis: bool,
    /// Measure throttlecrab-server too, asked by its own gRPC; it is installed below bench/target the first time.
    #[arg(long, conflicts_with = "redis")]
    with_throttlecrab: bool,
    /// Measure calls through this Envoy as well.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    through: Option<PathBuf>,
    /// Measure this program instead of building one.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    quell: Option<PathBuf>,
    /// Print the report for programs.
    #[arg(long)]
    #[serde(skip)]
    json: bool,
}

/// Asks a rival for a while. Returns questions per second.
type Ask<'a> = &'a dyn Fn(&Rival) -> Result<f64>;

/// A service that runs.
struct Rival {
    name: &'static str,
    address: SocketAddr,
    running: Running,
    /// Redis that it counts on.
    redis: Option<Running>,
    /// The call on one key.
    call: Call,
}

/// A call of gRPC.
struct Call {
    method: &'static str,
    /// A file with its body.
    body: PathBuf,
}

impl Rival {
    /// A service of Envoy's.
    fn of_envoy(
        name: &'static str,
        address: SocketAddr,
        command: &mut Command,
        redis: Option<Running>,
    ) -> Result<Self> {
        Ok(Self {
            name,
            address,
            running: Running::start(name, command, address)?,
            redis,
            call: Call::new(METHOD, &question(&key(0)))?,
        })
    }

    /// Whether Envoy can ask it.
    fn speaks_envoy(&self) -> bool {
        self.call.method == METHOD
    }

    /// Processor time so far: of the server, and of its Redis.
    fn processor_time(&self) -> Result<(Duration, Duration)> {
        let redis = self.redis.as_ref().map(Running::processor_time);
        let redis = redis.transpose()?.unwrap_or_default();
        Ok((self.running.processor_time()?, redis))
    }
}

/// Measures and prints.
///
/// # Errors
/// If a server or a client is missing or fails, or the report cannot be written.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    ensure!(settings.runs > 0, "--runs must be at least 1");
    ensure!(settings.seconds > 0, "--seconds must be at least 1");
    ensure!(
        on_path("h2load").is_some(),
        "h2load is not installed (Debian: nghttp2-client)"
    );
    let mut report = Report::new("envoy", QUESTION, OVERHEAD, settings)?;
    let rivals = start(settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    for rival in rivals.iter().filter(|one| one.speaks_envoy()) {
        let answer = runtime.block_on(ask_once(rival.address))?;
        let statuses = answer.statuses.len();
        ensure!(
            answer.overall_code() == Code::Ok && statuses == 1,
            "{} answers {answer:?}",
            rival.name
        );
    }
    let keys = draw(Spread::Uniform, KEYS, 1 << 16);
    let cases: [(&str, Ask<'_>); 2] = [
        ("one key, h2load", &|rival| h2load(rival, settings.seconds)),
        (MANY, &|rival| {
            runtime.block_on(ask_many(rival.address, &keys, settings.seconds))
        }),
    ];
    for (case, ask) in cases {
        for run in 0..settings.runs {
            for turn in 0..rivals.len() {
                let rival = &rivals[(run + turn) % rivals.len()];
                if case == MANY && !rival.speaks_envoy() {
                    continue;
                }
                let before = rival.processor_time()?;
                let rate = ask(rival)?;
                let after = rival.processor_time()?;
                let of_question = |after: Duration, before: Duration| {
                    let used = after.saturating_sub(before);
                    used.as_secs_f64() * 1e6 / (rate * settings.seconds as f64)
                };
                let micros = of_question(after.0, before.0);
                report.add(case, rival.name, "per second", rate);
                report.add(&processor_case(case), rival.name, "us", micros);
                let of_redis = of_question(after.1, before.1);
                report.add(&redis_case(case), rival.name, "us", of_redis);
                progress(&format!(
                    "run {} of {}  {case:<20} {:<14} {:>8.1}k per s {micros:>8.2} us of processor",
                    run + 1,
                    settings.runs,
                    rival.name,
                    rate / 1000.0
                ));
            }
        }
    }
    let mut tables = cases
        .map(|(case, _)| table(&report, &rivals, case))
        .to_vec();
    if let Some(envoy) = &settings.through {
        let asked: Vec<&Rival> = rivals.iter().filter(|one| one.speaks_envoy()).collect();
        tables.push(through::measure(&mut report, settings, envoy, &asked)?);
    }
    report.finish(&tables.join("\n"), settings.json)
}

fn processor_case(case: &str) -> String {
    format!("{case}, processor")
}

fn redis_case(case: &str) -> String {
    format!("{case}, Redis")
}

fn table(report: &Report, rivals: &[Rival], case: &str) -> String {
    let heading = [
        case,
        "k per s",
        "to the echo",
        "server us per question",
        "Redis us per question",
    ];
    let mut table = Table::new(heading);
    for rival in rivals {
        let rate = report.median(case, rival.name);
        let micros = report.median(&processor_case(case), rival.name);
        table.row([
            rival.name.to_owned(),
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.1}", rate / 1000.0)),
            ratio(rate, report.median(case, Kind::Echo.name())),
            micros.map_or_else(|| "-".to_owned(), |micros| format!("{micros:.2}")),
            report
                .median(&redis_case(case), rival.name)
                .map_or_else(|| "-".to_owned(), |micros| format!("{micros:.2}")),
        ]);
    }
    table.to_string()
}

/// Starts Quell, by its own rules and by files of envoyproxy/ratelimit, and the rivals in processes of their own.
fn start(settings: &Settings) -> Result<Vec<Rival>> {
    let mut rivals = Vec::new();
    let program = match &settings.quell {
        Some(program) => program.clone(),
        None => built_quell(&["otel"])?,
    };
    let inputs = bench_folder().join("inputs");
    for (name, flag, limits) in [
        ("quell", "--rules", "envoy.yaml"),
        ("quell, files", "--envoy-config", "envoy-files"),
    ] {
        let address = free_address()?;
        let mut command = Command::new(&program);
        command.arg("serve").arg(flag).arg(inputs.join(limits));
        command.args(["--http", "off", "--resp", "off"]);
        command.args(["--envoy", &address.to_string(), "--envoy-headers", "off"]);
        let redis = settings
            .redis
            .then(|| start_redis(&[], u16::MAX))
            .transpose()?;
        if let Some((_, at)) = &redis {
            command.args(["--store", &format!("redis://{at}")]);
        }
        let redis = redis.map(|(redis, _)| redis);
        rivals.push(Rival::of_envoy(name, address, &mut command, redis)?);
    }
    let kinds = match settings.redis {
        true => [Kind::TwoCommands, Kind::Echo],
        false => [Kind::Limitador, Kind::Echo],
    };
    for kind in kinds {
        let address = free_address()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["envoy-rival", "--kind", kind.name()]);
        command.args(["--address", &address.to_string()]);
        let has_redis = kind == Kind::TwoCommands;
        let redis = has_redis.then(|| start_redis(&[], u16::MAX)).transpose()?;
        if let Some((_, at)) = &redis {
            command.args(["--redis", &at.to_string()]);
        }
        let redis = redis.map(|(redis, _)| redis);
        rivals.push(Rival::of_envoy(kind.name(), address, &mut command, redis)?);
    }
    if settings.with_throttlecrab {
        rivals.push(throttlecrab::start()?);
    }
    Ok(rivals)
}

fn question(user: &str) -> RateLimitRequest {
    let entry = Entry {
        key: "user".to_owned(),
        value: user.to_owned(),
    };
    RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: vec![Descriptor {
            entries: vec![entry],
            ..Descriptor::default()
        }],
        hits_addend: 0,
    }
}

impl Call {
    /// Writes the message to a file as gRPC sends it.
    fn new(method: &'static str, message: &impl prost::Message) -> Result<Self> {
        let name = method.rsplit('/').next().unwrap_or(method);
        let body = bench_folder().join("target").join(name);
        fs::write(&body, framed(message)?)?;
        Ok(Self { method, body })
    }
}

/// A message as gRPC sends it: not compressed, and its length before it.
fn framed(message: &impl prost::Message) -> Result<Vec<u8>> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len())?;
    Ok([&[0][..], &length.to_be_bytes(), &bytes].concat())
}

async fn ask_once(address: SocketAddr) -> Result<RateLimitResponse> {
    let mut client = RateLimitServiceClient::connect(format!("http://{address}")).await?;
    let answer = client.should_rate_limit(question(&key(0))).await?;
    Ok(answer.into_inner())
}

/// Questions per second of `h2load` with one thread.
fn h2load(rival: &Rival, seconds: u64) -> Result<f64> {
    let Call { method, body } = &rival.call;
    let output = Command::new("h2load")
        .args(["-t", "1", "-c", &CONNECTIONS.to_string()])
        .args(["-m", &AT_A_TIME.to_string()])
        .args(["-D", &seconds.to_string(), "-d"])
        .arg(body)
        .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
        .arg(format!("http://{}{method}", rival.address))
        .output()
        .context("cannot start h2load")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "h2load failed: {text}");
    let failed = text.lines().find(|line| line.starts_with("requests: "));
    ensure!(
        failed.is_some_and(|line| line.contains(" 0 failed")),
        "questions failed: {text}"
    );
    let line = text.lines().find(|line| line.starts_with("finished in "));
    let rate = line.and_then(|line| {
        line.split(", ")
            .nth(1)?
            .strip_suffix(" req/s")?
            .parse()
            .ok()
    });
    rate.with_context(|| format!("h2load printed {text:?}"))
}

/// Questions per second about keys at random, by clients in this process. They send bytes that are ready, since what a
/// client costs makes all rivals alike.
async fn ask_many(address: SocketAddr, keys: &[String], seconds: u64) -> Result<f64> {
    let bodies = keys
        .iter()
        .map(|key| framed(&question(key)).map(Bytes::from));
    let bodies: Arc<[Bytes]> = bodies.collect::<Result<_>>()?;
    let question = Request::post(format!("http://{address}{METHOD}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let begun = Instant::now();
    let until = begun + Duration::from_secs(seconds);
    let mut tasks = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (client, driver) = h2::client::handshake(stream).await?;
        tokio::spawn(driver);
        for stream in 0..AT_A_TIME {
            let (client, bodies, question) =
                (client.clone(), Arc::clone(&bodies), question.clone());
            tasks.spawn(async move {
                let (mut asked, mut next) = (0_u64, (connection * AT_A_TIME + stream) * 700);
                while Instant::now() < until {
                    let body = bodies[next % bodies.len()].clone();
                    ask_framed(client.clone(), question.clone(), body).await?;
                    (asked, next) = (asked + 1, next + 1);
                }
                anyhow::Ok(asked)
            });
        }
    }
    let mut asked = 0;
    while let Some(task) = tasks.join_next().await {
        asked += task??;
    }
    Ok(asked as f64 / begun.elapsed().as_secs_f64())
}

/// Asks once, and checks that there is an answer.
async fn ask_framed(client: SendRequest<Bytes>, question: Request<()>, body: Bytes) -> Result<()> {
    let mut client = client.ready().await?;
    let (answer, mut sender) = client.send_request(question, false)?;
    sender.send_data(body, true)?;
    let mut body = answer.await?.into_body();
    let mut length = 0;
    while let Some(part) = body.data().await {
        let part = part?;
        length += part.len();
        body.flow_control().release_capacity(part.len())?;
    }
    let end = body.trailers().await?.context("an answer has no end")?;
    let status = end.get("grpc-status").map(http::HeaderValue::as_bytes);
    ensure!(
        status == Some(b"0") && length > 5,
        "an answer failed: {end:?}"
    );
    Ok(())
}
