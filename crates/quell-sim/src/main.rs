//! The command line of the simulation.
use quell_core::fleet::mistake::Mistake;
use quell_sim::run::run;
use quell_sim::setup::Wish;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let from: u64 = args[1].parse().unwrap();
    let n: u64 = args[2].parse().unwrap();
    let members: usize = args[3].parse().unwrap();
    let mistake = args.get(4).and_then(|m| Mistake::ALL.iter().find(|x| x.name() == m).copied());
    let t = std::time::Instant::now();
    let (mut bad, mut util, mut steps) = (0, 0, 0);
    let trace = args.get(5).is_some();
    for seed in from..from + n {
        let o = run(Wish { seed, members: (members > 0).then_some(members), limits: None, seconds: 500, mistake }, None, trace);
        util += o.utilisation;
        steps += o.steps;
        if let Some(v) = o.violation {
            bad += 1;
            if bad < 12 { println!("seed {seed}: {} at {} ms: {}", v.promise, v.at / 1_000_000, v.text); }
            if trace { for l in &o.trace { println!("{l}"); } }
        }
    }
    println!("{n} seeds, {bad} bad, util {}, steps {steps}, {:?}", util / n, t.elapsed());
}
