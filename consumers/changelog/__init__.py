"""Write-back of state: a replica's dirty items go to compacted changelogs, from which a restore begins instead of a log's beginning."""
