"""How the processes of a run are found, agree on steps, and end as one."""
