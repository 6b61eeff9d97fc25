-- Chains, groups and other tasks that began each other, from the root to the leaves: the last message of each task, its depth, and
-- the waits and runs from the root up to it. `WHERE root_id = '…'` shows one workflow.
WITH RECURSIVE tasks AS (
    SELECT *
    FROM (
        SELECT
            root_id, task_id, task, queue, state, published_at, finished_at, wait_s, run_s,
            -- A task that replaces itself (`Task.replace`) is the parent of its next message.
            max(CASE WHEN parent_id <> task_id THEN parent_id END) OVER (PARTITION BY task_id) AS parent_id,
            row_number() OVER (PARTITION BY task_id ORDER BY published_at DESC, id DESC) AS place
        FROM messages
        WHERE task_id IS NOT NULL
    ) AS numbered
    WHERE place = 1
),
tree AS (
    SELECT root_id, task_id, parent_id, 0 AS depth, coalesce(wait_s, 0.0) AS waits_s, coalesce(run_s, 0.0) AS runs_s
    FROM tasks
    WHERE task_id = root_id
    UNION ALL
    SELECT
        tasks.root_id, tasks.task_id, tasks.parent_id, tree.depth + 1,
        tree.waits_s + coalesce(tasks.wait_s, 0.0), tree.runs_s + coalesce(tasks.run_s, 0.0)
    FROM tree
    JOIN tasks ON tasks.parent_id = tree.task_id AND tasks.task_id <> tasks.root_id
)
SELECT
    tree.root_id, tree.depth, tree.task_id, tree.parent_id, tasks.task, tasks.queue, tasks.state, tasks.published_at,
    tasks.finished_at, tasks.wait_s, tasks.run_s, tree.waits_s, tree.runs_s
FROM tree
JOIN tasks ON tasks.task_id = tree.task_id
