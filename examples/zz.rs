use memplan::analysis::*; use memplan::plan::fast_memory::{self,*}; use memplan::memory::Target; use memplan::{hlo,ir};
fn main(){ let corpus=std::env::args().nth(1).unwrap(); let target=Target::find("tpu-v5e").unwrap(); let options=FastMemoryOptions::for_target(&target).unwrap();
 let mut names:Vec<String>=std::fs::read_dir(&corpus).unwrap().filter_map(|e|e.ok()?.file_name().into_string().ok()).collect(); names.sort();
 for name in names { let Ok(text)=std::fs::read_to_string(format!("{corpus}/{name}/tpu.hlo.txt")) else {continue};
  let mut m=hlo::parse(&text).unwrap(); fast_memory::naked(&mut m,&target).unwrap(); fast_memory::assign(&mut m,&target,&options).unwrap();
  let graph=CallGraph::new(&m).unwrap(); let costs=Costs::new(&m,&graph,&InPlace::new(&m),&target); let d=Durations::new(&m,&graph,&costs,&target); let r=RunEstimate::new(&m,&graph,&costs,&target);
  let main=d.of(m.entry_computation().root); let _=main;
  println!("{name}: {:.1} us waiting {:.1} bytes/bw {:.1}", r.seconds*1e6, r.waiting*1e6, r.main_memory_bytes/819e9*1e6);
  for &c in graph.sequential(){ if c==m.entry {continue}
   let (mut secs,mut busy)=(0.0,0.0); let mut stalls:Vec<(f64,String)>=vec![];
   for &id in &m.computations[c].instructions { let (s,b)=d.of(id); secs+=s; busy+=b; if !calls_sequentially(&m.instructions[id].op) { let comp=Machine::new(&target).compute_seconds(costs.work(id)); if b>comp { stalls.push((b-comp, format!("{} {:?}", m.instructions[id].name, costs.work(id).accesses.iter().map(|a|(a.operand,a.bytes.0)).collect::<Vec<_>>()))); } } }
   let f=costs.frequency(c); if secs*f>0.002*r.seconds { stalls.sort_by(|a,b|b.0.total_cmp(&a.0)); println!("   {} x{f}: secs {:.2}us busy {:.2}us", m.computations[c].name, secs*1e6,busy*1e6); for s in stalls.iter().take(6){ println!("       stall {:.3}us {}", s.0*1e6,s.1);} } }
 }}
