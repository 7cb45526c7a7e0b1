//! A client that stays below the limits of somebody else's API: 20 calls a second, 10,000 tokens a minute.
//!
//! ```sh
//! cargo run -p quell --example upstream
//! ```
//!
//! The cost of a call is known only afterwards. So the client reserves the most that the call may cost,
//! waits for its turn, and settles the real cost. The difference is returned at once.

use std::error::Error;
use std::time::Duration;

use quell::rule::{DomainRules, Rule};
use quell::store::memory::MemoryStore;
use quell::{Cost, Limit, LimitError, Limiter, Query};

/// The most tokens that one answer may take.
const MOST: u64 = 4_000;

/// Longest time of a call; a reservation that is forgotten stays charged.
const LONGEST: Duration = Duration::from_secs(60);

/// An API with limits.
pub(crate) struct Api {
    limiter: Limiter<MemoryStore>,
}

impl Api {
    pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
        let limiter = Limiter::new(MemoryStore::new());
        limiter.set_rules(vec![DomainRules::new("api", rules()?)])?;
        Ok(Self { limiter })
    }

    /// Asks the API, and returns the tokens that the answer took; `None` if its turn would not come within
    /// `patience`.
    pub(crate) async fn ask(
        &self,
        question: &str,
        patience: Duration,
    ) -> Result<Option<u64>, Box<dyn Error>> {
        let most = Cost::new(MOST).ok_or("a cost of 0")?;
        let query = Query::new("api").cost(most);
        let verdict = self
            .limiter
            .reserve_timeout(&query, LONGEST, None, patience)
            .await?;
        let Some(id) = verdict.id.clone().filter(|_| verdict.is_allow()) else {
            return Ok(None);
        };
        let tokens = call(question).await;
        self.limiter.settle("api", &id, tokens).await?;
        Ok(Some(tokens))
    }

    /// The tokens that are left in this minute.
    pub(crate) async fn left(&self) -> Result<Option<u64>, Box<dyn Error>> {
        let verdict = self.limiter.peek(&Query::new("api")).await?;
        let mut rules = verdict.decisions.iter();
        let tokens = rules.find(|decided| &*decided.rule == "tokens");
        Ok(tokens.map(|tokens| tokens.decision.remaining))
    }
}

fn rules() -> Result<Vec<Rule>, LimitError> {
    let calls = Rule {
        cost: Some(Cost::ONE),
        ..Rule::new("calls", Limit::per_second(20).burst(1))?
    };
    let minute = Duration::from_secs(60);
    let tokens = Rule::new("tokens", Limit::sliding_window(10_000, minute))?;
    Ok(vec![calls, tokens])
}

/// The call: an answer takes ten tokens for each byte of the question here.
async fn call(question: &str) -> u64 {
    tokio::time::sleep(Duration::from_millis(1)).await;
    u64::try_from(question.len()).unwrap_or(MOST) * 10
}

#[expect(clippy::print_stdout, reason = "it shows what it does")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let api = Api::new()?;
    for question in ["What is a token?", "And a bucket?", "Why do they leak?"] {
        let tokens = api.ask(question, Duration::from_secs(10)).await?;
        println!("{question} {tokens:?} tokens; {:?} left", api.left().await?);
    }
    Ok(())
}
